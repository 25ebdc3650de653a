-- What went wrong, and how a run stood it: losses, faults put in on purpose and others.

CREATE VIEW losses AS
WITH down AS (
    SELECT run_no, round, attempt, rank, seq, reason, detail, for_good FROM store.placed WHERE kind = 'worker_down'),
absent AS (
    SELECT w.run_no, w.rank, w.round, w.attempt, r.nth, r.first_seq,
           r.nth - row_number() OVER (PARTITION BY w.run_no, w.rank ORDER BY r.nth) AS island
    FROM store.worker_rounds w JOIN store.rounds r USING (run_no, round, attempt)
    WHERE w.state = 'absent' AND r.done
    -- told already
    AND NOT EXISTS (FROM down d WHERE d.run_no = w.run_no AND d.rank = w.rank AND d.for_good AND d.seq < r.first_seq)
    AND (w.run_no, w.round, w.attempt, w.rank) NOT IN (
        SELECT (run_no, round, attempt, rank) FROM down WHERE round IS NOT NULL AND rank IS NOT NULL)),
rejected AS (
    SELECT run_no, round, attempt, rank, seq, reason, detail, reason IN ('late', 'deadline') AS given_up
    FROM store.placed WHERE kind = 'reject'),
every AS (
    SELECT run_no, round, attempt, rank, seq,
           CASE phase WHEN 'push' THEN 'push failed' WHEN 'pull' THEN 'pull failed' WHEN 'train' THEN 'training failed'
                WHEN 'eval' THEN 'evaluation failed' ELSE 'aggregate failed' END AS what,
           concat_ws(': ', CASE WHEN kind IN ('push', 'pull') THEN path END,
                     CASE WHEN exit_code IS NOT NULL AND coalesce(error, '') NOT LIKE '%exit%' AND exit_code <> 0
                          THEN 'exit code ' || exit_code END,
                     error, nullif(output_tail, '')) AS text,
           duration_us
    FROM store.spans WHERE failed
    -- what was ended because nobody waited for it any more, or with the run, is told once
    AND NOT (coalesce(error, '') LIKE 'ended: %' AND (run_no, round, attempt, rank) IN (
        SELECT (run_no, round, attempt, rank) FROM rejected WHERE given_up))
    AND NOT (coalesce(error, '') = 'cancelled' AND (run_no, round, attempt) IN (
        SELECT (run_no, round, attempt) FROM store.rounds WHERE outcome = 'interrupted'))
    UNION ALL
    SELECT run_no, round, attempt, rank, seq, CASE WHEN given_up THEN 'not in time' ELSE 'weights rejected' END,
           CASE WHEN given_up THEN detail ELSE reason || ': ' || detail END, NULL
    FROM rejected
    UNION ALL
    SELECT run_no, round, attempt, rank, seq, 'metrics', error, NULL
    FROM store.placed WHERE kind = 'metric' AND error IS NOT NULL
    UNION ALL
    SELECT d.run_no, d.round, d.attempt, d.rank, d.seq, CASE WHEN d.for_good THEN 'left for good' ELSE 'left' END,
           d.reason || ': ' || d.detail, NULL
    FROM down d
    UNION ALL
    SELECT run_no, min(round), NULL, rank, min(first_seq), 'no trace',
           CASE WHEN min(round) = max(round) THEN 'in round ' || min(round)
                ELSE 'in rounds ' || min(round) || ' to ' || max(round) END, NULL
    FROM absent GROUP BY run_no, rank, island
    UNION ALL
    SELECT run_no, round, attempt, NULL, s.last_seq, 'round ' || outcome, coalesce(reason, ''), duration_us
    FROM store.rounds JOIN store.seen s USING (run_no, round, attempt) WHERE done AND outcome <> 'ok')
SELECT u.run, e.run_no, e.round, e.attempt, r.tries, e.rank, e.what, e.text, e.duration_us / 1e6 AS duration_s, e.seq
FROM every e JOIN store.runs u USING (run_no)
LEFT JOIN store.rounds r ON e.run_no = r.run_no AND e.round = r.round AND e.attempt = r.attempt;
COMMENT ON VIEW losses IS 'One row a thing lost: a failed span, rejected weights, a worker that left or left no trace, a failed round.';
COMMENT ON COLUMN losses.run IS 'id of the run';
COMMENT ON COLUMN losses.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN losses.round IS 'round, from 0';
COMMENT ON COLUMN losses.attempt IS 'which try of the round; null where it is not of one round alone';
COMMENT ON COLUMN losses.tries IS 'how often that round was tried';
COMMENT ON COLUMN losses.rank IS 'worker, from 0; null: the coordinator';
COMMENT ON COLUMN losses.what IS 'what was lost, in two words';
COMMENT ON COLUMN losses.text IS 'why, in the log''s words';
COMMENT ON COLUMN losses.duration_s IS 'how long it took, seconds';
COMMENT ON COLUMN losses.seq IS 'number of the event in its run';

-- A worker's first trouble in each try of a round; to be too late for the others is none, unless a fault made it so.
CREATE TABLE store.faults AS
WITH troubles AS (
    SELECT e.run_no, e.round, e.attempt, e.rank, e.seq, e.injected,
           -- A call that hung tells of it at its end only: from when on it did is its start and what it says beside.
           CASE WHEN e.injected_after_s * 1e6 < e.duration_us AND e.t_us >= e.duration_us
                THEN e.t_us - e.duration_us + round(e.injected_after_s * 1e6)::BIGINT ELSE e.t_us END AS t_us,
           CASE WHEN e.kind = 'reject' THEN if(e.reason IN ('late', 'deadline'), 'not in time', 'weights rejected')
                WHEN e.kind = 'worker_down' THEN 'left'
                ELSE if(e.kind = 'exec', 'training', e.kind)
                     || if(e.error IS NULL AND coalesce(e.exit_code, 0) = 0, '', ' failed') END AS what,
           e.kind = 'reject' AND e.reason = 'late' AS late
    FROM store.placed e LEFT JOIN store.rounds r USING (run_no, round, attempt)
    WHERE e.rank IS NOT NULL AND e.round IS NOT NULL
      AND NOT (e.injected IS NULL AND coalesce(r.outcome, '') = 'interrupted'
               AND coalesce(e.error, '') = 'cancelled')  -- by who ended the run
      AND (e.injected IS NOT NULL OR e.kind = 'reject' OR (e.kind = 'worker_down' AND e.reason <> 'failures')
           OR (e.kind IN ('push', 'exec', 'pull') AND (e.error IS NOT NULL OR coalesce(e.exit_code, 0) <> 0)))),
judged AS (
    SELECT *, bool_or(late) OVER (PARTITION BY run_no, round, attempt, rank) AS was_late FROM troubles)
SELECT run_no, round, attempt, rank, min(seq) AS seq, min(t_us) AS t_us, arg_min(what, seq) AS what,
       arg_min(injected, seq) FILTER (injected IS NOT NULL) AS injected
FROM judged WHERE injected IS NOT NULL OR NOT was_late GROUP BY ALL;

CREATE TABLE store.commits AS
SELECT run_no, round, attempt, end_us, duration_us, survivors,
       max(active_nodes) OVER (PARTITION BY run_no) AS strength
FROM store.rounds WHERE done AND outcome = 'ok';

CREATE VIEW faults AS
SELECT u.run, f.run_no, f.round, f.attempt, f.rank, f.what, f.injected, f.t_us / 1e6 AS t_s,
       (c.end_us - f.t_us) / 1e6 AS to_commit_s, (s.end_us - f.t_us) / 1e6 AS to_strength_s, f.seq
FROM store.faults f JOIN store.runs u USING (run_no)
ASOF LEFT JOIN store.commits c ON f.run_no = c.run_no AND f.t_us <= c.end_us
ASOF LEFT JOIN (FROM store.commits WHERE survivors >= strength) s ON f.run_no = s.run_no AND f.t_us <= s.end_us;
COMMENT ON VIEW faults IS 'One row a worker and try of a round in which something went wrong with it: the first of it, and how long it took to get over it.';
COMMENT ON COLUMN faults.run IS 'id of the run';
COMMENT ON COLUMN faults.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN faults.round IS 'round, from 0';
COMMENT ON COLUMN faults.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN faults.rank IS 'worker, from 0';
COMMENT ON COLUMN faults.what IS 'what the log says first: push failed, training failed, pull failed, weights rejected, not in time, or left; of a fault that failed nothing, such as slow, its span';
COMMENT ON COLUMN faults.injected IS 'the fault that was put in on purpose; null where none was';
COMMENT ON COLUMN faults.t_s IS 'when a fault put in struck; of others, and where the log does not say, when it tells of them; seconds since the run began';
COMMENT ON COLUMN faults.to_commit_s IS 'from then to the end of the next round that was committed, seconds; null where none was';
COMMENT ON COLUMN faults.to_strength_s IS 'from then to the end of the next committed round in which all workers survived, seconds; null where none was';
COMMENT ON COLUMN faults.seq IS 'number of the event in its run';

CREATE VIEW resilience AS
WITH span AS (
    SELECT run_no, min(start_us) AS start_us, max(end_us) AS end_us, max(active_nodes) AS workers,
           count(*) FILTER (done AND outcome = 'ok') AS committed, count(*) AS tries,
           avg(coalesce(survivors, 0)) FILTER (done AND outcome <> 'interrupted') / max(active_nodes) AS participation
    FROM store.rounds GROUP BY ALL),
-- The time in which a coordinator ran: not that between an end and its resume.
ran AS (
    SELECT p.run_no, p.start_us, p.end_us, p.workers, p.committed, p.tries, p.participation,
           store.whole(sum(greatest(least(s.end_us, p.end_us) - greatest(s.start_us, p.start_us), 0))) AS ran_us
    FROM span p JOIN store.session_ends s USING (run_no) GROUP BY ALL),
moves AS (
    SELECT e.run_no, e.kind, e.t_us, s.end_us AS session_us,
           lead(e.t_us) OVER (PARTITION BY e.run_no, e.rank ORDER BY e.seq) AS next_us
    FROM store.events e ASOF JOIN store.session_ends s ON e.run_no = s.run_no AND e.seq >= s.from_seq
    WHERE e.kind IN ('worker_up', 'worker_down') AND e.rank IS NOT NULL),
up AS (
    SELECT m.run_no, store.whole(sum(greatest(least(coalesce(m.next_us, m.session_us), m.session_us, p.end_us)
                                  - greatest(m.t_us, p.start_us), 0))) AS up_us
    FROM moves m JOIN span p USING (run_no) WHERE m.kind = 'worker_up' GROUP BY ALL),
met AS (
    SELECT run_no, count(*) AS faults, count(*) FILTER (injected IS NOT NULL) AS injected,
           median(to_commit_s) AS to_commit_s, max(to_commit_s) AS longest_to_commit_s,
           median(to_strength_s) AS to_strength_s, max(to_strength_s) AS longest_to_strength_s
    FROM faults GROUP BY ALL),
calm AS (
    SELECT c.run_no, count(*) AS rounds, median(c.duration_us) AS duration_us FROM store.commits c
    WHERE NOT EXISTS (SELECT 1 FROM store.faults f
                      WHERE f.run_no = c.run_no AND f.round = c.round AND f.attempt = c.attempt)
    GROUP BY ALL)
SELECT u.run, p.run_no, p.workers, least(up.up_us / nullif(p.workers::DOUBLE * p.ran_us, 0), 1.0) AS liveness,
       p.participation, p.committed, p.tries, coalesce(m.faults, 0) AS faults, coalesce(m.injected, 0) AS injected,
       m.to_commit_s, m.longest_to_commit_s, m.to_strength_s, m.longest_to_strength_s,
       p.ran_us / 1e6 AS elapsed_s, p.committed * 3600e6 / nullif(p.ran_us, 0) AS commits_per_hour,
       coalesce(c.rounds, 0) AS calm_rounds, c.duration_us / 1e6 AS calm_s,
       c.duration_us * p.committed / nullif(p.ran_us, 0) AS throughput
FROM ran p JOIN store.runs u USING (run_no) LEFT JOIN up USING (run_no) LEFT JOIN met m USING (run_no)
LEFT JOIN calm c USING (run_no);
COMMENT ON VIEW resilience IS 'One row a run: how it stood faults. Liveness, participation and committed rounds are three figures, none of which stands for another.';
COMMENT ON COLUMN resilience.run IS 'id of the run';
COMMENT ON COLUMN resilience.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN resilience.workers IS 'most workers that took part in a round';
COMMENT ON COLUMN resilience.liveness IS 'share of worker time, from the first round''s start to the last one''s end, in which workers were up: joined and not left';
COMMENT ON COLUMN resilience.participation IS 'survivors over workers, mean of the tries of rounds that ended';
COMMENT ON COLUMN resilience.committed IS 'rounds whose aggregate became the params';
COMMENT ON COLUMN resilience.tries IS 'tries of rounds';
COMMENT ON COLUMN resilience.faults IS 'workers and tries of rounds in which something went wrong';
COMMENT ON COLUMN resilience.injected IS 'those in which a fault was put in on purpose';
COMMENT ON COLUMN resilience.to_commit_s IS 'from a fault (see faults.t_s) to the next committed round, median, seconds';
COMMENT ON COLUMN resilience.longest_to_commit_s IS 'from a fault to the next committed round, longest, seconds';
COMMENT ON COLUMN resilience.to_strength_s IS 'from a fault to the next committed round in which all workers survived, median, seconds';
COMMENT ON COLUMN resilience.longest_to_strength_s IS 'from a fault to the next committed round in which all workers survived, longest, seconds';
COMMENT ON COLUMN resilience.elapsed_s IS 'from the first round''s start to the last one''s end, seconds';
COMMENT ON COLUMN resilience.commits_per_hour IS 'committed rounds an hour of that time';
COMMENT ON COLUMN resilience.calm_rounds IS 'committed rounds in which nothing went wrong';
COMMENT ON COLUMN resilience.calm_s IS 'their median duration, seconds';
COMMENT ON COLUMN resilience.throughput IS 'committed rounds an hour as a share of what it would be if all had taken as long as the calm ones; null where none was calm';
