-- Tables that the views rest on. They are computed when a query first needs them (see lazy.py) and are no part of
-- the promise; the views in "main" are. Times are whole microseconds.

-- A sum that is beyond 2^60, as only damage makes it, is 2^60, so that sums of such sums are within 64 bits.
CREATE MACRO store.whole(x) AS
CASE WHEN x > 1152921504606846976 THEN 1152921504606846976 WHEN x < -1152921504606846976 THEN -1152921504606846976
     ELSE x END::BIGINT;

-- One row a try of a round. A try's number rises strictly, also where the log is damaged.
CREATE TABLE store.tries AS
WITH numbered AS (
    SELECT run_no, round, seq, t_us, attempt, active_nodes, total_nodes, params_sha256,
           row_number() OVER (PARTITION BY run_no, round ORDER BY seq) AS nth
    FROM store.events_round_start WHERE round IS NOT NULL)
SELECT run_no, round, seq, t_us, active_nodes, total_nodes, params_sha256,
       nth + max(coalesce(attempt, nth) - nth) OVER (PARTITION BY run_no, round ORDER BY seq) AS attempt,
       count(*) OVER (PARTITION BY run_no, round) AS tries
FROM numbered;

-- Each resume begins a session; a session's end is where an open span ends at the latest.
CREATE TABLE store.sessions AS
WITH begun AS (
    SELECT run_no, -1 AS seq FROM store.runs
    UNION ALL SELECT run_no, seq FROM store.events_run_resume)
SELECT run_no, seq AS from_seq,
       coalesce(lead(seq) OVER (PARTITION BY run_no ORDER BY seq), 9223372036854775807) AS to_seq
FROM begun;

CREATE TABLE store.session_ends AS
WITH once AS (FROM store.sessions WHERE from_seq = -1 AND to_seq = 9223372036854775807),
resumed AS (SELECT run_no, seq, t_us FROM store.events WHERE run_no NOT IN (SELECT run_no FROM once)),
every AS (
    SELECT e.run_no, s.from_seq, s.to_seq, e.t_us FROM store.events e JOIN once s USING (run_no)
    UNION ALL
    SELECT e.run_no, s.from_seq, s.to_seq, e.t_us
    FROM resumed e ASOF JOIN store.sessions s ON e.run_no = s.run_no AND e.seq >= s.from_seq)
SELECT run_no, from_seq, to_seq, min(t_us) AS start_us, max(t_us) AS end_us FROM every GROUP BY ALL;

-- To which try an event of a round that was tried more than once belongs. For other rounds, nearly all, the try is known
-- without a look for the nearest, which sorts.
CREATE TABLE store.retried AS
WITH again AS (SELECT run_no, round FROM store.tries WHERE tries > 1 GROUP BY ALL),
mine AS (SELECT e.run_no, e.round, e.seq FROM store.events e JOIN again USING (run_no, round))
SELECT e.run_no, e.seq, coalesce(s.attempt, 1) AS attempt
FROM mine e ASOF LEFT JOIN store.tries s ON e.run_no = s.run_no AND e.round = s.round AND e.seq >= s.seq;

-- Every event and the try it belongs to; which try a span is of the event itself calls its attempt.
CREATE VIEW store.placed AS
SELECT e.* EXCLUDE (attempt), e.attempt AS try,
       CASE WHEN e.round IS NOT NULL THEN coalesce(a.attempt, CASE WHEN e.seq >= o.seq THEN o.attempt END, 1) END AS attempt
FROM store.events e LEFT JOIN (FROM store.tries WHERE tries = 1) o ON e.run_no = o.run_no AND e.round = o.round
LEFT JOIN store.retried a ON e.run_no = a.run_no AND e.seq = a.seq;

-- Starts without their end: the next of the same kind from the worker is none. A code for each kind, its opposite for
-- its end, is sorted faster than names.
CREATE TABLE store.unended AS
WITH marks AS (
    SELECT run_no, coalesce(rank, -9223372036854775808) AS who, seq, t_us, code::TINYINT AS code FROM (
        SELECT run_no, rank, seq, t_us, 1 AS code FROM store.events_push_start
        UNION ALL SELECT run_no, rank, seq, t_us, 2 FROM store.events_exec_start
        UNION ALL SELECT run_no, rank, seq, t_us, 3 FROM store.events_pull_start
        UNION ALL SELECT run_no, rank, seq, t_us, -1 FROM store.events_push
        UNION ALL SELECT run_no, rank, seq, t_us, -2 FROM store.events_exec
        UNION ALL SELECT run_no, rank, seq, t_us, -3 FROM store.events_pull
        UNION ALL SELECT run_no, rank, seq, t_us, 0 FROM store.events_worker_down)),
-- Nearly every start is followed at once by its end; only for the others it is looked for.
loose AS (
    SELECT * FROM (
        SELECT *, lead(code) OVER worker AS next_code, lead(t_us) OVER worker AS next_us, lead(seq) OVER worker AS next_seq
        FROM marks WINDOW worker AS (PARTITION BY run_no, who ORDER BY seq))
    WHERE code > 0 AND next_code IS DISTINCT FROM -code),
same AS (
    SELECT run_no, who, seq, abs(code) AS code, code < 0 AS ends FROM marks
    WHERE (run_no, who, abs(code)) IN (SELECT (run_no, who, code) FROM loose))
SELECT l.run_no, l.seq, ['push', 'exec', 'pull'][l.code] AS kind, l.next_us, l.next_seq
FROM loose l ASOF LEFT JOIN same n ON l.run_no = n.run_no AND l.who = n.who AND l.code = n.code AND l.seq < n.seq
WHERE n.ends IS DISTINCT FROM true;

CREATE TABLE store.spans AS
WITH open AS (
    SELECT e.run_no, e.round, e.attempt, e.seq, o.kind, e.rank, e.t_us, coalesce(e.path, e.command) AS path, e.try,
           greatest(coalesce(CASE WHEN o.next_seq < s.to_seq THEN o.next_us END, s.end_us), e.t_us) AS end_us
    FROM store.unended o
    ASOF JOIN store.session_ends s ON o.run_no = s.run_no AND o.seq >= s.from_seq
    JOIN store.placed e ON e.run_no = o.run_no AND e.seq = o.seq
    WHERE e.kind IN ('push_start', 'exec_start', 'pull_start')),
every AS (
    SELECT run_no, round, attempt, seq, kind, rank, greatest(t_us - duration_us, 0) AS start_us, t_us AS end_us,
           duration_us, false AS open, path, size_bytes, reused, plain_bytes, exit_code, output_tail, output_path, error, try
    FROM store.placed WHERE kind IN ('push', 'exec', 'pull', 'aggregate') AND duration_us IS NOT NULL
    UNION ALL
    SELECT run_no, round, attempt, seq, kind, rank, t_us, end_us, end_us - t_us, true, path, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, try
    FROM open)
SELECT *, CASE WHEN kind = 'exec' THEN CASE WHEN rank IS NULL THEN 'eval' ELSE 'train' END ELSE kind END AS phase,
       error IS NOT NULL OR (kind = 'exec' AND coalesce(exit_code, 0) <> 0) AS failed
FROM every;

-- What any event of a try shows of it.
CREATE TABLE store.seen AS
WITH seen AS (
    SELECT run_no, round, attempt, min(seq) AS first_seq, max(seq) AS last_seq, min(t_us) AS first_us, max(t_us) AS last_us,
           count(DISTINCT rank) AS ranks, max(rank) FILTER (rank < 100000) + 1 AS most_rank, count(*) FILTER (kind = 'reject') AS rejected
    FROM store.placed WHERE round IS NOT NULL GROUP BY ALL)
-- A rank far beyond the number of workers is damage, and would have a row for each rank below it in every try.
SELECT * REPLACE (CASE WHEN most_rank <= 100 + 10 * max(ranks) OVER (PARTITION BY run_no) THEN most_rank END AS most_rank),
       row_number() OVER (PARTITION BY run_no ORDER BY first_seq) AS nth
FROM seen;

CREATE TABLE store.rounds AS
WITH sums AS (
    SELECT run_no, round, attempt,
           min(start_us) AS first_start_us, max(end_us) AS last_end_us,
           store.whole(coalesce(sum(size_bytes - coalesce(reused, 0)) FILTER (kind = 'push' AND NOT failed), 0))
               AS bytes_up,
           store.whole(coalesce(sum(size_bytes - coalesce(reused, 0)) FILTER (kind = 'pull' AND NOT failed), 0))
               AS bytes_down,
           store.whole(sum(duration_us) FILTER (phase = 'aggregate')) AS aggregate_us,
           store.whole(sum(duration_us) FILTER (phase = 'eval')) AS eval_us,
           count(*) FILTER (failed) AS failures, count(*) FILTER (open) AS open_spans
    FROM store.spans WHERE round IS NOT NULL GROUP BY ALL),
longest AS (
    SELECT run_no, round, attempt, max(push_us) AS longest_push_us, max(train_us) AS longest_train_us,
           max(pull_us) AS longest_pull_us
    FROM (SELECT run_no, round, attempt, rank, store.whole(sum(duration_us) FILTER (phase = 'push')) AS push_us,
                 store.whole(sum(duration_us) FILTER (phase = 'train')) AS train_us,
                 store.whole(sum(duration_us) FILTER (phase = 'pull')) AS pull_us
          FROM store.spans WHERE rank IS NOT NULL AND round IS NOT NULL GROUP BY ALL)
    GROUP BY ALL),
said AS (FROM store.placed WHERE kind IN ('round_end', 'aggregate') AND round IS NOT NULL),
ends AS (
    SELECT run_no, round, attempt, seq, t_us, duration_us, survivors, total_nodes, outcome, reason
    FROM said WHERE kind = 'round_end'
    QUALIFY row_number() OVER (PARTITION BY run_no, round, attempt ORDER BY seq DESC) = 1),
made AS (
    SELECT run_no, round, attempt, num_workers, weight_norm, delta_norm, ranks, method, weighting, params_sha256, error
    FROM said WHERE kind = 'aggregate'
    QUALIFY row_number() OVER (PARTITION BY run_no, round, attempt ORDER BY seq DESC) = 1),
job AS (SELECT run_no, max(total_nodes) AS total_nodes FROM store.events_run_start GROUP BY ALL),
timed AS (
    SELECT seen.* EXCLUDE (last_seq, nth), sums.* EXCLUDE (run_no, round, attempt), e.seq IS NOT NULL AS done, e.duration_us AS said_us,
           coalesce(e.t_us - e.duration_us, t.t_us, least(seen.first_us, sums.first_start_us)) AS start_us,
           coalesce(e.t_us, greatest(seen.last_us, sums.last_end_us), seen.last_us) AS end_us,
           CASE WHEN e.seq IS NULL THEN 'open' ELSE coalesce(e.outcome, 'ok') END AS outcome, e.reason,
           coalesce(e.survivors, m.num_workers) AS survivors,
           greatest(coalesce(e.total_nodes, t.total_nodes, j.total_nodes, 0), coalesce(seen.most_rank, 0))
               AS total_nodes,
           coalesce(t.active_nodes, seen.ranks) AS active_nodes,
           m.num_workers, m.weight_norm, m.delta_norm, m.ranks AS averaged, m.method, m.weighting,
           m.params_sha256, l.longest_push_us, l.longest_train_us, l.longest_pull_us, seen.nth
    FROM store.seen LEFT JOIN sums USING (run_no, round, attempt) LEFT JOIN ends e USING (run_no, round, attempt)
    LEFT JOIN made m USING (run_no, round, attempt) LEFT JOIN longest l USING (run_no, round, attempt)
    LEFT JOIN store.tries t USING (run_no, round, attempt) LEFT JOIN job j USING (run_no))
SELECT *, end_us - start_us AS duration_us,
       count(*) OVER (PARTITION BY run_no, round) AS tries
FROM timed;

-- Every worker that was expected in a round, whether it left a trace or not.
CREATE TABLE store.worker_rounds AS
WITH expected AS (
    SELECT run_no, round, attempt, unnest(range(total_nodes)) AS rank FROM store.rounds WHERE total_nodes <= 100000),
traces AS (
    SELECT run_no, round, attempt, rank,
           store.whole(coalesce(sum(duration_us) FILTER (phase = 'push'), 0)) AS push_us,
           store.whole(coalesce(sum(duration_us) FILTER (phase = 'train'), 0)) AS train_us,
           store.whole(coalesce(sum(duration_us) FILTER (phase = 'pull'), 0)) AS pull_us,
           store.whole(coalesce(sum(size_bytes - coalesce(reused, 0)) FILTER (kind = 'push' AND NOT failed), 0))
               AS bytes_up,
           store.whole(coalesce(sum(size_bytes - coalesce(reused, 0)) FILTER (kind = 'pull' AND NOT failed), 0))
               AS bytes_down,
           count(*) FILTER (failed) AS failures, arg_max(failed, end_us::HUGEINT * 9223372036854775808 + seq) AS last_failed,
           bool_or(open) AS open, bool_or(kind = 'pull' AND NOT failed AND NOT open) AS pulled
    FROM store.spans WHERE rank IS NOT NULL AND round IS NOT NULL GROUP BY ALL),
kept_out AS (
    SELECT run_no, round, attempt, rank FROM store.placed WHERE kind = 'reject' GROUP BY ALL),
averaged AS (
    SELECT DISTINCT run_no, round, attempt, unnest(averaged) AS rank FROM store.rounds)
SELECT e.*, coalesce(t.push_us, 0) AS push_us, coalesce(t.train_us, 0) AS train_us, coalesce(t.pull_us, 0) AS pull_us,
       coalesce(t.bytes_up, 0) AS bytes_up, coalesce(t.bytes_down, 0) AS bytes_down,
       coalesce(t.failures, 0) AS failures,
       CASE WHEN t.rank IS NULL THEN 'absent'
            WHEN a.rank IS NOT NULL THEN 'survived'
            WHEN k.rank IS NOT NULL THEN 'rejected'
            WHEN t.last_failed THEN 'failed'
            WHEN t.open THEN 'open'
            WHEN t.pulled AND r.averaged IS NULL AND r.outcome = 'ok' THEN 'survived'
            WHEN NOT r.done THEN 'open'
            ELSE 'not used' END AS state
FROM expected e JOIN store.rounds r USING (run_no, round, attempt)
LEFT JOIN traces t USING (run_no, round, attempt, rank)
LEFT JOIN kept_out k USING (run_no, round, attempt, rank)
LEFT JOIN averaged a USING (run_no, round, attempt, rank);

-- Each worker's time in a round, cut into pieces without gap or overlap; and the coordinator's spans.
CREATE TABLE store.segments AS
WITH mine AS (
    SELECT s.run_no, s.round, s.attempt, s.rank, s.seq, s.phase, s.failed, s.open,
           greatest(s.start_us, r.start_us) AS start_us,
           greatest(least(s.end_us, r.end_us), greatest(s.start_us, r.start_us)) AS end_us,
           r.start_us AS round_start_us, r.end_us AS round_end_us
    FROM store.spans s JOIN store.rounds r USING (run_no, round, attempt)
    WHERE s.rank IS NOT NULL AND s.start_us <= r.end_us),
walked AS (
    SELECT *, row_number() OVER here = 1 AS first_here, lead(start_us) OVER here AS next_us,
           -- No overlap: a span begins where the latest end before it was.
           greatest(start_us, coalesce(max(end_us) OVER (here ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
                                       start_us)) AS from_us
    FROM mine
    WINDOW here AS (PARTITION BY run_no, round, attempt, rank ORDER BY start_us, seq)),
-- Spans whose worker had failed just before; of workers that never failed there are none.
after_failure AS (
    SELECT run_no, seq FROM (
        SELECT run_no, seq, lag(failed) OVER (PARTITION BY run_no, rank ORDER BY start_us, seq) AS before_failed FROM mine
        WHERE (run_no, rank) IN (SELECT (run_no, rank) FROM mine WHERE failed))
    WHERE before_failed),
kept_out AS (SELECT run_no, round, attempt, rank, state FROM store.worker_rounds WHERE state = 'rejected'),
going AS (
    SELECT u.run_no, any_value(l.running) AS running, max(r.nth) AS last_nth
    FROM store.runs u JOIN store.logs l USING (log_no) JOIN store.rounds r USING (run_no) GROUP BY u.run_no),
last_spans AS (
    SELECT run_no, rank, arg_max(failed, seq) AS failed FROM store.spans WHERE rank IS NOT NULL GROUP BY ALL),
pieces AS (
    SELECT run_no, round, attempt, rank, seq, CASE WHEN failed THEN 'dead' ELSE phase END AS state, phase, open,
           from_us AS start_us, end_us
    FROM walked
    UNION ALL  -- after a span, to the next or to the round's end
    SELECT run_no, round, attempt, rank, NULL,
           CASE WHEN failed THEN 'dead' WHEN next_us IS NULL AND k.state IS NOT NULL THEN 'rejected' ELSE 'wait' END,
           NULL, false, greatest(end_us, from_us), coalesce(next_us, round_end_us)
    FROM walked LEFT JOIN kept_out k USING (run_no, round, attempt, rank)
    UNION ALL  -- before the first
    SELECT w.run_no, round, attempt, rank, NULL, CASE WHEN f.seq IS NOT NULL THEN 'dead' ELSE 'wait' END, NULL, false,
           round_start_us, start_us
    FROM walked w LEFT JOIN after_failure f ON w.run_no = f.run_no AND w.seq = f.seq WHERE first_here
    UNION ALL  -- no trace at all; in a round that is still going on that may mean: not yet
    SELECT w.run_no, w.round, w.attempt, w.rank, NULL,
           CASE WHEN r.done OR NOT g.running OR f.failed OR r.nth < g.last_nth THEN 'dead' ELSE 'wait' END,
           NULL, false, r.start_us, r.end_us
    FROM store.worker_rounds w JOIN store.rounds r USING (run_no, round, attempt) JOIN going g USING (run_no)
    LEFT JOIN last_spans f ON f.run_no = w.run_no AND f.rank = w.rank
    WHERE w.state = 'absent'
    UNION ALL
    SELECT s.run_no, s.round, s.attempt, NULL, s.seq, CASE WHEN s.failed THEN 'dead' ELSE s.phase END, s.phase, s.open,
           greatest(s.start_us, r.start_us), least(s.end_us, r.end_us)
    FROM store.spans s JOIN store.rounds r USING (run_no, round, attempt) WHERE s.rank IS NULL)
SELECT * FROM pieces WHERE end_us > start_us OR (seq IS NOT NULL AND end_us = start_us);

CREATE TABLE store.metrics AS
WITH reported AS (
    SELECT run_no, round, seq, rank, t_us, num_samples, map_entries(CAST("values" AS MAP(VARCHAR, DOUBLE))) AS entries,
           attempt
    FROM store.placed WHERE kind = 'metric' AND "values" IS NOT NULL)
SELECT r.* EXCLUDE (entries, attempt), i AS position, entries[i].key AS name, entries[i].value AS value, r.attempt
FROM reported r, unnest(range(1, len(entries) + 1)) AS u(i);

CREATE TABLE store.places AS
SELECT run_no, rank, arg_max(address, seq) FILTER (kind = 'worker_up') AS address,
       arg_max(facts, seq) FILTER (kind = 'worker_up') AS facts, count(*) FILTER (kind = 'worker_up') AS joined,
       count(*) FILTER (kind = 'worker_down') AS left_count, arg_max(kind, seq) AS last_kind,
       arg_max(reason, seq) FILTER (kind = 'worker_down') AS down_reason, coalesce(bool_or(for_good), false) AS for_good
FROM store.events WHERE rank IS NOT NULL AND kind IN ('worker_up', 'worker_down') GROUP BY ALL;

CREATE TABLE store.work AS
SELECT run_no, rank, count(*) FILTER (state = 'survived') AS survived, count(*) FILTER (state = 'rejected') AS rejected,
       count(*) FILTER (state = 'failed') AS failed, count(*) FILTER (state = 'absent') AS absent, count(*) AS rounds,
       store.whole(sum(push_us)) AS push_us, store.whole(sum(train_us)) AS train_us, store.whole(sum(pull_us)) AS pull_us,
       store.whole(sum(bytes_up)) AS bytes_up, store.whole(sum(bytes_down)) AS bytes_down,
       median(train_us) FILTER (state = 'survived') AS median_train_us
FROM store.worker_rounds GROUP BY ALL;
