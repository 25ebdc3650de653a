-- The questions that can be asked of loaded logs. Every view and column is documented at its end.
-- Tables in the schema "store" are computed when a query first needs them (see lazy.py); they are no part of the
-- promise. Views in "main" are.
-- Times are microseconds in columns ending in _us, which add up exactly, and seconds in those ending in _s.

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
    SELECT run_no, coalesce(rank, -9223372036854775808) AS who, seq, t_us,
           CASE kind WHEN 'push_start' THEN 1 WHEN 'exec_start' THEN 2 WHEN 'pull_start' THEN 3
                     WHEN 'push' THEN -1 WHEN 'exec' THEN -2 WHEN 'pull' THEN -3 ELSE 0 END::TINYINT AS code
    FROM store.events
    WHERE kind IN ('push', 'exec', 'pull', 'push_start', 'exec_start', 'pull_start', 'worker_down')),
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
           CASE WHEN failed THEN 'dead' WHEN next_us IS NULL AND w.state = 'rejected' THEN 'rejected' ELSE 'wait' END,
           NULL, false, greatest(end_us, from_us), coalesce(next_us, round_end_us)
    FROM walked LEFT JOIN store.worker_rounds w USING (run_no, round, attempt, rank)
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

CREATE VIEW logs AS
SELECT l.log_no, l.file, l.size_bytes, l.lines, coalesce(r.rejects, 0) AS rejects, l.lines - coalesce(r.rejects, 0) AS events,
       coalesce(g.missing, 0) AS missing, l.running, l.oldest_version, l.newest_version, l.shuffled, l.cut
FROM store.logs l
LEFT JOIN (SELECT log_no, count(*) AS rejects FROM store.rejects GROUP BY ALL) r USING (log_no)
LEFT JOIN (SELECT log_no, least(sum(missing), 9223372036854775807)::BIGINT AS missing FROM store.gaps GROUP BY ALL) g USING (log_no);

CREATE VIEW events AS
SELECT u.run, e.run_no, l.file, e.line, e.byte_offset, e.* EXCLUDE (run_no, run, line, byte_offset)
FROM store.events e JOIN store.runs u USING (run_no) JOIN store.logs l USING (log_no);

CREATE VIEW rejects AS
SELECT l.file, r.line, r.byte_offset, r.length, r.reason, r.detail, r.head
FROM store.rejects r JOIN store.logs l USING (log_no);

CREATE VIEW damage AS
SELECT l.file, r.reason, count(*) AS lines, min(r.line) AS first_line,
       arg_min(r.detail, r.line) AS example
FROM store.rejects r JOIN store.logs l USING (log_no) GROUP BY ALL
UNION ALL
SELECT l.file, 'missing seq', least(sum(g.missing), 9223372036854775807)::BIGINT, min(g.before_line),
       arg_min(g.missing, g.before_line) || ' missing before line ' || min(g.before_line)
FROM store.gaps g JOIN store.logs l USING (log_no) GROUP BY l.file
UNION ALL
SELECT file, 'out of place', shuffled, 1, 'the lines were sorted or shuffled; read in the order of seq'
FROM store.logs WHERE shuffled > 0
UNION ALL
SELECT file, 'cut off', 1, lines, cut FROM store.logs WHERE cut IS NOT NULL;

CREATE VIEW spans AS
SELECT u.run, s.run_no, s.round, s.attempt, s.rank, s.kind, s.phase, s.start_us / 1e6 AS start_s, s.end_us / 1e6 AS end_s,
       s.duration_us / 1e6 AS duration_s, s.start_us, s.end_us, s.duration_us, s.failed, s.open, s.path, s.size_bytes,
       s.reused, s.plain_bytes, s.exit_code, s.output_tail, s.output_path, s.error, s.try, s.seq
FROM store.spans s JOIN store.runs u USING (run_no);

CREATE VIEW segments AS
SELECT u.run, s.run_no, r.nth, s.round, s.attempt, s.rank, s.state, s.phase, s.open, s.start_us / 1e6 AS start_s,
       s.end_us / 1e6 AS end_s, s.start_us, s.end_us, s.end_us - s.start_us AS duration_us, s.seq
FROM store.segments s JOIN store.rounds r USING (run_no, round, attempt) JOIN store.runs u USING (run_no);

CREATE VIEW worker_rounds AS
SELECT u.run, w.run_no, r.nth, w.round, w.attempt, w.rank, w.state, w.push_us / 1e6 AS push_s, w.train_us / 1e6 AS train_s,
       w.pull_us / 1e6 AS pull_s, w.push_us, w.train_us, w.pull_us, w.bytes_up, w.bytes_down, w.failures
FROM store.worker_rounds w JOIN store.rounds r USING (run_no, round, attempt) JOIN store.runs u USING (run_no);

CREATE VIEW rounds AS
SELECT u.run, r.run_no, r.nth, r.round, r.attempt, r.tries, r.outcome, r.reason, r.survivors, r.active_nodes,
       r.total_nodes, r.rejected, coalesce(r.failures, 0) AS failures, coalesce(r.open_spans, 0) AS open_spans,
       coalesce(r.bytes_up, 0) AS bytes_up, coalesce(r.bytes_down, 0) AS bytes_down,
       r.longest_push_us / 1e6 AS longest_push_s, r.longest_train_us / 1e6 AS longest_train_s,
       r.longest_pull_us / 1e6 AS longest_pull_s, r.aggregate_us / 1e6 AS aggregate_s, r.eval_us / 1e6 AS eval_s,
       r.start_us / 1e6 AS start_s, r.end_us / 1e6 AS end_s, r.duration_us / 1e6 AS duration_s,
       r.longest_push_us, r.longest_train_us, r.longest_pull_us, r.aggregate_us, r.eval_us, r.start_us, r.end_us,
       r.duration_us, r.delta_norm, r.weight_norm, r.num_workers, r.method, r.weighting, r.params_sha256
FROM store.rounds r JOIN store.runs u USING (run_no) ORDER BY r.run_no, r.nth;

CREATE VIEW phases AS
WITH shares AS (
    SELECT run_no, round, attempt,
           store.whole(coalesce(sum(end_us - start_us) FILTER (state = 'push'), 0)) AS push_us,
           store.whole(coalesce(sum(end_us - start_us) FILTER (state = 'train'), 0)) AS train_us,
           store.whole(coalesce(sum(end_us - start_us) FILTER (state = 'pull'), 0)) AS pull_us,
           store.whole(coalesce(sum(end_us - start_us) FILTER (state IN ('wait', 'rejected')), 0)) AS idle_us,
           store.whole(coalesce(sum(end_us - start_us) FILTER (state = 'dead'), 0)) AS dead_us
    FROM store.segments WHERE rank IS NOT NULL GROUP BY ALL),
central AS (
    SELECT w.run_no, w.round, w.attempt, c.phase,
           store.whole(sum(greatest(least(w.end_us, c.end_us) - greatest(w.start_us, c.start_us), 0))) AS us
    FROM store.segments w JOIN store.segments c USING (run_no, round, attempt)
    WHERE w.rank IS NOT NULL AND w.state IN ('wait', 'rejected') AND c.rank IS NULL AND c.phase IN ('aggregate', 'eval') GROUP BY ALL),
split AS (
    SELECT run_no, round, attempt, store.whole(coalesce(sum(us) FILTER (phase = 'aggregate'), 0)) AS aggregate_us,
           store.whole(coalesce(sum(us) FILTER (phase = 'eval'), 0)) AS eval_us
    FROM central GROUP BY ALL)
SELECT u.run, s.run_no, r.nth, s.round, s.attempt, r.total_nodes, s.push_us, s.train_us, s.pull_us,
       s.idle_us - coalesce(c.aggregate_us, 0) - coalesce(c.eval_us, 0) AS wait_us, s.dead_us,
       coalesce(c.aggregate_us, 0) AS aggregate_us, coalesce(c.eval_us, 0) AS eval_us,
       store.whole(r.duration_us::HUGEINT * r.total_nodes) AS total_us
FROM shares s JOIN store.rounds r USING (run_no, round, attempt) JOIN store.runs u USING (run_no)
LEFT JOIN split c USING (run_no, round, attempt);

CREATE VIEW metrics AS
SELECT u.run, m.run_no, m.round, m.attempt, m.rank, m.name, m.value, m.num_samples, m.t_us / 1e6 AS t_s, m.position, m.seq
FROM store.metrics m JOIN store.runs u USING (run_no);

CREATE VIEW round_metrics AS
WITH sides AS (
    SELECT run_no, round, attempt, name, 'evaluation' AS source, arg_max(value, seq) AS value, 1 AS reports,
           min(position) AS position
    FROM store.metrics WHERE rank IS NULL GROUP BY ALL
    UNION ALL
    SELECT run_no, round, attempt, name, 'workers',
           CASE WHEN bool_or(num_samples IS NULL) OR sum(num_samples) <= 0 THEN avg(value)
                ELSE sum(value * num_samples) / sum(num_samples) END,
           count(*), min(position)
    FROM store.metrics WHERE rank IS NOT NULL GROUP BY ALL)
SELECT u.run, b.run_no, r.nth, b.round, b.attempt, b.name, b.source, b.value, b.reports, b.position
FROM sides b JOIN store.seen r USING (run_no, round, attempt) JOIN store.runs u USING (run_no);

CREATE VIEW runs AS
WITH started AS (
    SELECT run_no, arg_min(job, seq) AS job, arg_min(versions, seq) AS versions, arg_min(host, seq) AS host,
           arg_min(total_nodes, seq) AS total_nodes, arg_min(params_sha256, seq) AS params_sha256
    FROM store.events_run_start GROUP BY ALL),
ended AS (
    SELECT run_no, status, reason, params_path -- arg_max passes over nulls, and would tell of an earlier end
    FROM store.events WHERE kind IN ('run_end', 'run_resume') -- what was gone on with has not ended
    QUALIFY row_number() OVER (PARTITION BY run_no ORDER BY seq DESC) = 1 AND kind = 'run_end'),
span AS ( -- a version 0 log doesn't say when its clock was zero
    SELECT run_no, arg_min(ts, seq) AS began, arg_max(ts, seq) AS last_event, if(any_value(newest_version) = 0, min(t_us), 0) AS zero_us,
           max(t_us) AS end_us, count(*) AS events, max(v) AS version,
           count(*) FILTER (kind = 'run_resume') AS resumes
    FROM store.events JOIN store.runs USING (run_no) JOIN store.logs USING (log_no) GROUP BY ALL),
summed AS (
    SELECT run_no, count(*) AS round_tries,
           count(DISTINCT round) FILTER (done AND outcome = 'ok') AS rounds_done,
           store.whole(sum(bytes_up)) AS bytes_up, store.whole(sum(bytes_down)) AS bytes_down,
           store.whole(sum(longest_train_us)) AS train_us, store.whole(sum(aggregate_us)) AS aggregate_us,
           store.whole(sum(eval_us)) AS eval_us, store.whole(sum(duration_us)) AS rounds_us,
           arg_max(survivors, nth) FILTER (done) AS last_survivors, max(total_nodes) AS seen_nodes,
           arg_max(total_nodes, nth) FILTER (done) AS last_nodes,
           arg_max(round, nth) FILTER (NOT done) AS open_round, arg_max(round, nth) AS last_round,
           store.whole(sum(failures)) AS failures, store.whole(sum(rejected)) AS rejected, store.whole(sum(survivors)) AS survivors
    FROM store.rounds GROUP BY ALL),
loose AS (SELECT run_no, count(*) FILTER (open) AS open_spans FROM store.spans GROUP BY ALL),
pauses AS (
    SELECT run_no, max(end_us) - min(start_us) - sum(end_us - start_us)::BIGINT AS paused_us
    FROM store.session_ends GROUP BY ALL HAVING count(*) > 1),
last_metric AS (
    SELECT run_no, name, value FROM round_metrics
    QUALIFY row_number() OVER (PARTITION BY run_no ORDER BY source, nth DESC, position) = 1)
SELECT u.run, u.run_no, l.file, s.job ->> 'name' AS job_name, b.began, b.last_event,
       CASE WHEN e.status IS NOT NULL THEN e.status WHEN l.running THEN 'running'
            WHEN l.newest_version = 0 THEN 'not said' ELSE 'crashed' END AS status,
       e.reason, coalesce(m.rounds_done, 0) AS rounds_done,
       CASE WHEN json_type(s.job, '$.rounds') IN ('UBIGINT', 'BIGINT') THEN (s.job ->> 'rounds')::BIGINT END
           AS rounds_planned,
       CASE WHEN e.status IS NULL AND m.open_round = m.last_round THEN m.open_round END AS open_round,
       CASE WHEN e.status IS NULL THEN coalesce(o.open_spans, 0) ELSE 0 END AS open_spans,
       coalesce(m.last_nodes, s.total_nodes, m.seen_nodes) AS total_nodes, m.last_survivors, x.name AS last_metric,
       x.value AS last_value, (b.end_us - b.zero_us) / 1e6 AS duration_s, b.end_us - b.zero_us AS duration_us,
       coalesce(p.paused_us, 0) / 1e6 AS paused_s, coalesce(p.paused_us, 0) AS paused_us,
       m.rounds_us / 1e6 AS rounds_s, m.rounds_us, m.train_us / 1e6 AS train_s, m.train_us,
       m.aggregate_us / 1e6 AS aggregate_s, m.aggregate_us, m.eval_us / 1e6 AS eval_s, m.eval_us, m.bytes_up,
       m.bytes_down, m.survivors, m.failures, m.rejected, coalesce(m.round_tries, 0) AS round_tries, b.resumes, b.events,
       b.version, s.host, s.params_sha256, e.params_path, s.job, s.versions
FROM store.runs u JOIN store.logs l USING (log_no) JOIN span b USING (run_no) LEFT JOIN started s USING (run_no)
LEFT JOIN ended e USING (run_no) LEFT JOIN summed m USING (run_no) LEFT JOIN loose o USING (run_no)
LEFT JOIN last_metric x USING (run_no) LEFT JOIN pauses p USING (run_no);

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

CREATE VIEW workers AS
WITH states AS (
    SELECT run_no, rank, store.whole(coalesce(sum(end_us - start_us) FILTER (state IN ('wait', 'rejected')), 0)) AS wait_us,
           store.whole(coalesce(sum(end_us - start_us) FILTER (state = 'dead'), 0)) AS dead_us
    FROM store.segments WHERE rank IS NOT NULL GROUP BY ALL),
known AS (SELECT run_no, rank FROM store.places UNION SELECT run_no, rank FROM store.work)
SELECT u.run, k.run_no, k.rank, p.address,
       CASE WHEN p.for_good THEN 'left for good' WHEN p.last_kind = 'worker_down' THEN 'left'
            WHEN p.rank IS NOT NULL OR w.survived > 0 THEN 'up' ELSE 'never seen' END AS state,
       p.down_reason, coalesce(w.rounds, 0) AS rounds, coalesce(w.survived, 0) AS survived,
       coalesce(w.failed, 0) AS failed, coalesce(w.rejected, 0) AS rejected, coalesce(w.absent, 0) AS absent,
       w.push_us / 1e6 AS push_s, w.train_us / 1e6 AS train_s, w.pull_us / 1e6 AS pull_s, t.wait_us / 1e6 AS wait_s,
       t.dead_us / 1e6 AS dead_s, w.median_train_us / 1e6 AS median_train_s, w.push_us, w.train_us, w.pull_us,
       t.wait_us, t.dead_us, coalesce(w.bytes_up, 0) AS bytes_up, coalesce(w.bytes_down, 0) AS bytes_down, p.facts
FROM known k JOIN store.runs u USING (run_no) LEFT JOIN store.places p USING (run_no, rank)
LEFT JOIN store.work w USING (run_no, rank) LEFT JOIN states t USING (run_no, rank);

CREATE VIEW losses AS
WITH down AS (
    SELECT run_no, round, rank, seq, reason, detail, for_good FROM store.events_worker_down),
absent AS (
    SELECT w.run_no, w.rank, w.round, w.attempt, r.nth, r.first_seq,
           r.nth - row_number() OVER (PARTITION BY w.run_no, w.rank ORDER BY r.nth) AS island
    FROM store.worker_rounds w JOIN store.rounds r USING (run_no, round, attempt)
    WHERE w.state = 'absent' AND r.done
    -- told already
    AND NOT EXISTS (FROM down d WHERE d.run_no = w.run_no AND d.rank = w.rank AND d.for_good AND d.seq < r.first_seq)),
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
    SELECT d.run_no, d.round, NULL, d.rank, d.seq, CASE WHEN d.for_good THEN 'left for good' ELSE 'left' END,
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

CREATE VIEW open_work AS
SELECT u.run, s.run_no, s.round, s.attempt, s.rank, s.phase, s.path AS doing, s.start_us / 1e6 AS start_s,
       s.duration_us / 1e6 AS so_far_s, s.seq
FROM store.spans s JOIN store.runs u USING (run_no) WHERE s.open;

CREATE VIEW run_medians AS
SELECT u.run, r.run_no, count(*) AS rounds, median(r.longest_push_us) / 1e6 AS push_s,
       median(r.longest_train_us) / 1e6 AS train_s, median(r.longest_pull_us) / 1e6 AS pull_s,
       median(r.aggregate_us) / 1e6 AS aggregate_s, median(r.eval_us) / 1e6 AS eval_s,
       median(r.duration_us) / 1e6 AS total_s, median(coalesce(r.bytes_up, 0)) AS bytes_up,
       median(coalesce(r.bytes_down, 0)) AS bytes_down, median(r.survivors) AS survivors
FROM store.rounds r JOIN store.runs u USING (run_no) WHERE r.done GROUP BY ALL;

CREATE VIEW last_metrics AS
SELECT run, run_no, name, source, value, round FROM round_metrics
QUALIFY row_number() OVER (PARTITION BY run_no, name ORDER BY source, nth DESC) = 1;

-- How a run stood faults, injected and other.

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

-- What each view and column means. Columns of "events" that the contract names are documented from the contract.

COMMENT ON VIEW logs IS 'One row a file: what was read of it. lines = events + rejects, always.';
COMMENT ON COLUMN logs.log_no IS 'number of the file among those loaded';
COMMENT ON COLUMN logs.file IS 'the log';
COMMENT ON COLUMN logs.size_bytes IS 'bytes read';
COMMENT ON COLUMN logs.lines IS 'lines read, a last one without newline included';
COMMENT ON COLUMN logs.rejects IS 'lines that are no event';
COMMENT ON COLUMN logs.events IS 'lines that are events';
COMMENT ON COLUMN logs.missing IS 'events missing without a trace (gaps in seq)';
COMMENT ON COLUMN logs.running IS 'a runner holds the log: the run is going on';
COMMENT ON COLUMN logs.oldest_version IS 'oldest schema version in the file';
COMMENT ON COLUMN logs.newest_version IS 'newest schema version in the file';
COMMENT ON COLUMN logs.shuffled IS 'events that are not where they were written, where the lines were sorted or shuffled';
COMMENT ON COLUMN logs.cut IS 'what of a compressed file could not be read; null where all could';

COMMENT ON VIEW events IS 'One row an event, as the contract says it, whatever its kind; fields that a kind does not have are null.';
COMMENT ON COLUMN events.run IS 'id of the run';
COMMENT ON COLUMN events.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN events.file IS 'the log';
COMMENT ON COLUMN events.line IS 'line in the log, from 1';
COMMENT ON COLUMN events.byte_offset IS 'byte of the log at which the line begins';
COMMENT ON COLUMN events.t_us IS 't in microseconds';
COMMENT ON COLUMN events.duration_us IS 'duration_s in microseconds';
COMMENT ON COLUMN events.extra IS 'fields that this analyzer does not know, as JSON';

COMMENT ON VIEW rejects IS 'One row a line that is no event, with the reason.';
COMMENT ON COLUMN rejects.file IS 'the log';
COMMENT ON COLUMN rejects.line IS 'line in the log, from 1';
COMMENT ON COLUMN rejects.byte_offset IS 'byte of the log at which the line begins';
COMMENT ON COLUMN rejects.length IS 'bytes of the line without its newline';
COMMENT ON COLUMN rejects.reason IS 'torn, not JSON, not UTF-8, NUL bytes, empty line, line too long, not an object, duplicate key, non-finite number, lone surrogate, wrong envelope, missing field, wrong type, unknown run, repeated seq, seq out of order or time going back';
COMMENT ON COLUMN rejects.detail IS 'what exactly';
COMMENT ON COLUMN rejects.head IS 'first 200 bytes of the line';

COMMENT ON VIEW damage IS 'One row a file and kind of damage, missing events included.';
COMMENT ON COLUMN damage.file IS 'the log';
COMMENT ON COLUMN damage.reason IS 'as in rejects, or: missing seq';
COMMENT ON COLUMN damage.lines IS 'how many lines, or events that are missing';
COMMENT ON COLUMN damage.first_line IS 'where it shows first';
COMMENT ON COLUMN damage.example IS 'detail of the first';

COMMENT ON VIEW spans IS 'One row a push, exec, pull or aggregate.';
COMMENT ON COLUMN spans.run IS 'id of the run';
COMMENT ON COLUMN spans.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN spans.round IS 'round, from 0';
COMMENT ON COLUMN spans.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN spans.rank IS 'worker, from 0; null: the coordinator';
COMMENT ON COLUMN spans.kind IS 'push, exec, pull or aggregate';
COMMENT ON COLUMN spans.phase IS 'push, train, pull, aggregate or eval';
COMMENT ON COLUMN spans.start_s IS 'when it began, seconds since the run began';
COMMENT ON COLUMN spans.end_s IS 'when it ended, seconds since the run began';
COMMENT ON COLUMN spans.duration_s IS 'how long it took, seconds';
COMMENT ON COLUMN spans.start_us IS 'when it began, microseconds since the run began';
COMMENT ON COLUMN spans.end_us IS 'when it ended, microseconds since the run began';
COMMENT ON COLUMN spans.duration_us IS 'how long it took, microseconds';
COMMENT ON COLUMN spans.failed IS 'it has an error or an exit code that is not 0';
COMMENT ON COLUMN spans.open IS 'begun and without an end in the log; drawn up to the last event';
COMMENT ON COLUMN spans.path IS 'file that travelled, or the command where the span is open';
COMMENT ON COLUMN spans.size_bytes IS 'size of the file';
COMMENT ON COLUMN spans.reused IS 'bytes that were there already';
COMMENT ON COLUMN spans.plain_bytes IS 'size of the file it stands for, where it travelled encoded';
COMMENT ON COLUMN spans.exit_code IS 'of the command; negative: the signal';
COMMENT ON COLUMN spans.output_tail IS 'last line the command printed';
COMMENT ON COLUMN spans.output_path IS 'file with all it printed, relative to the log';
COMMENT ON COLUMN spans.error IS 'why it failed';
COMMENT ON COLUMN spans."try" IS 'which try of this span, from 1';
COMMENT ON COLUMN spans.seq IS 'number of the event in its run';

COMMENT ON VIEW segments IS 'Each worker''s time in a round cut into pieces without gap or overlap, and the spans of the coordinator.';
COMMENT ON COLUMN segments.run IS 'id of the run';
COMMENT ON COLUMN segments.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN segments.nth IS 'place of this try of the round in the run, from 1';
COMMENT ON COLUMN segments.round IS 'round, from 0';
COMMENT ON COLUMN segments.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN segments.rank IS 'worker, from 0; null: the coordinator';
COMMENT ON COLUMN segments.state IS 'push, train, pull, aggregate, eval, wait (nothing to do), rejected (the same, its weights kept out) or dead (a failed span and all after it until the worker''s next)';
COMMENT ON COLUMN segments.phase IS 'push, train, pull, aggregate or eval';
COMMENT ON COLUMN segments.open IS 'begun and without an end in the log; drawn up to the last event';
COMMENT ON COLUMN segments.start_s IS 'when it began, seconds since the run began';
COMMENT ON COLUMN segments.end_s IS 'when it ended, seconds since the run began';
COMMENT ON COLUMN segments.start_us IS 'when it began, microseconds since the run began';
COMMENT ON COLUMN segments.end_us IS 'when it ended, microseconds since the run began';
COMMENT ON COLUMN segments.duration_us IS 'how long it took, microseconds';
COMMENT ON COLUMN segments.seq IS 'number of the event in its run';

COMMENT ON VIEW worker_rounds IS 'One row a worker and try of a round, also where the worker left no trace.';
COMMENT ON COLUMN worker_rounds.run IS 'id of the run';
COMMENT ON COLUMN worker_rounds.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN worker_rounds.nth IS 'place of this try of the round in the run, from 1';
COMMENT ON COLUMN worker_rounds.round IS 'round, from 0';
COMMENT ON COLUMN worker_rounds.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN worker_rounds.rank IS 'worker, from 0; null: the coordinator';
COMMENT ON COLUMN worker_rounds.state IS 'survived, rejected, failed, absent (no trace), open, or not used';
COMMENT ON COLUMN worker_rounds.push_s IS 'time of pushes, seconds';
COMMENT ON COLUMN worker_rounds.train_s IS 'time of training commands, seconds';
COMMENT ON COLUMN worker_rounds.pull_s IS 'time of pulls, seconds';
COMMENT ON COLUMN worker_rounds.push_us IS 'time of pushes, microseconds';
COMMENT ON COLUMN worker_rounds.train_us IS 'time of training commands, microseconds';
COMMENT ON COLUMN worker_rounds.pull_us IS 'time of pulls, microseconds';
COMMENT ON COLUMN worker_rounds.bytes_up IS 'bytes pushed to workers; failed transfers and reused bytes not counted';
COMMENT ON COLUMN worker_rounds.bytes_down IS 'bytes pulled from workers; failed transfers and reused bytes not counted';
COMMENT ON COLUMN worker_rounds.failures IS 'spans that failed';

COMMENT ON VIEW rounds IS 'One row a try of a round; in the order in which they began. The rows of other views are in no order: ask for one by ORDER BY.';
COMMENT ON COLUMN rounds.run IS 'id of the run';
COMMENT ON COLUMN rounds.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN rounds.nth IS 'place of this try of the round in the run, from 1';
COMMENT ON COLUMN rounds.round IS 'round, from 0';
COMMENT ON COLUMN rounds.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN rounds.tries IS 'how often the round was tried';
COMMENT ON COLUMN rounds.outcome IS 'ok, failed, interrupted, or open where the log has no end of it';
COMMENT ON COLUMN rounds.reason IS 'why it did not end well; null where it did';
COMMENT ON COLUMN rounds.survivors IS 'workers whose weights entered the aggregate';
COMMENT ON COLUMN rounds.active_nodes IS 'workers that took part';
COMMENT ON COLUMN rounds.total_nodes IS 'workers the job lists, without spares that stand by';
COMMENT ON COLUMN rounds.rejected IS 'weights not let into the aggregate';
COMMENT ON COLUMN rounds.failures IS 'spans that failed';
COMMENT ON COLUMN rounds.open_spans IS 'spans without an end';
COMMENT ON COLUMN rounds.bytes_up IS 'bytes pushed to workers; failed transfers and reused bytes not counted';
COMMENT ON COLUMN rounds.bytes_down IS 'bytes pulled from workers; failed transfers and reused bytes not counted';
COMMENT ON COLUMN rounds.longest_push_s IS 'longest time of pushes of one worker, seconds';
COMMENT ON COLUMN rounds.longest_train_s IS 'longest time of training of one worker, failed commands included, seconds';
COMMENT ON COLUMN rounds.longest_pull_s IS 'longest time of pulls of one worker, seconds';
COMMENT ON COLUMN rounds.aggregate_s IS 'time of the aggregate, seconds';
COMMENT ON COLUMN rounds.eval_s IS 'time of the evaluation on the coordinator, seconds';
COMMENT ON COLUMN rounds.start_s IS 'when it began, seconds since the run began';
COMMENT ON COLUMN rounds.end_s IS 'when it ended, seconds since the run began';
COMMENT ON COLUMN rounds.duration_s IS 'how long it took, seconds';
COMMENT ON COLUMN rounds.longest_push_us IS 'longest time of pushes of one worker, microseconds';
COMMENT ON COLUMN rounds.longest_train_us IS 'longest time of training of one worker, failed commands included, microseconds';
COMMENT ON COLUMN rounds.longest_pull_us IS 'longest time of pulls of one worker, microseconds';
COMMENT ON COLUMN rounds.aggregate_us IS 'time of the aggregate, microseconds';
COMMENT ON COLUMN rounds.eval_us IS 'time of the evaluation on the coordinator, microseconds';
COMMENT ON COLUMN rounds.start_us IS 'when it began, microseconds since the run began';
COMMENT ON COLUMN rounds.end_us IS 'when it ended, microseconds since the run began';
COMMENT ON COLUMN rounds.duration_us IS 'how long it took, microseconds';
COMMENT ON COLUMN rounds.delta_norm IS 'L2 norm of new minus old params';
COMMENT ON COLUMN rounds.weight_norm IS 'L2 norm of the new params';
COMMENT ON COLUMN rounds.num_workers IS 'workers averaged';
COMMENT ON COLUMN rounds.method IS 'how they were averaged';
COMMENT ON COLUMN rounds.weighting IS 'by what they were weighted';
COMMENT ON COLUMN rounds.params_sha256 IS 'SHA-256 of the params it ended with';

COMMENT ON VIEW phases IS 'Where the time of a round went: worker time by phase. The parts add up to total_us exactly.';
COMMENT ON COLUMN phases.run IS 'id of the run';
COMMENT ON COLUMN phases.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN phases.nth IS 'place of this try of the round in the run, from 1';
COMMENT ON COLUMN phases.round IS 'round, from 0';
COMMENT ON COLUMN phases.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN phases.total_nodes IS 'workers the job lists';
COMMENT ON COLUMN phases.push_us IS 'workers in a push';
COMMENT ON COLUMN phases.train_us IS 'workers in training';
COMMENT ON COLUMN phases.pull_us IS 'workers in a pull';
COMMENT ON COLUMN phases.wait_us IS 'workers with nothing to do, aggregate and evaluation aside';
COMMENT ON COLUMN phases.dead_us IS 'workers dead';
COMMENT ON COLUMN phases.aggregate_us IS 'workers waiting for the aggregate';
COMMENT ON COLUMN phases.eval_us IS 'workers waiting for the evaluation';
COMMENT ON COLUMN phases.total_us IS 'duration of the round times total_nodes';

COMMENT ON VIEW metrics IS 'One row a reported number.';
COMMENT ON COLUMN metrics.run IS 'id of the run';
COMMENT ON COLUMN metrics.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN metrics.round IS 'round, from 0';
COMMENT ON COLUMN metrics.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN metrics.rank IS 'worker; null: the evaluation on the coordinator';
COMMENT ON COLUMN metrics.name IS 'name of the metric';
COMMENT ON COLUMN metrics.value IS 'its value';
COMMENT ON COLUMN metrics.num_samples IS 'samples it was measured on';
COMMENT ON COLUMN metrics.t_s IS 'when, seconds since the run began';
COMMENT ON COLUMN metrics.position IS 'place among the metrics of its report, from 1';
COMMENT ON COLUMN metrics.seq IS 'number of the event in its run';

COMMENT ON VIEW round_metrics IS 'One row a metric and try of a round: the evaluation''s, and the mean over the workers.';
COMMENT ON COLUMN round_metrics.run IS 'id of the run';
COMMENT ON COLUMN round_metrics.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN round_metrics.nth IS 'place of this try of the round in the run, from 1';
COMMENT ON COLUMN round_metrics.round IS 'round, from 0';
COMMENT ON COLUMN round_metrics.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN round_metrics.name IS 'name of the metric';
COMMENT ON COLUMN round_metrics.source IS 'evaluation: of the coordinator; workers: mean over the workers, weighted by num_samples where all say it';
COMMENT ON COLUMN round_metrics.value IS 'its value';
COMMENT ON COLUMN round_metrics.reports IS 'how many reports are in it';
COMMENT ON COLUMN round_metrics.position IS 'place among the metrics of its report, from 1';

COMMENT ON VIEW last_metrics IS 'The last value of each metric of a run; the evaluation''s where there is one.';
COMMENT ON COLUMN last_metrics.run IS 'id of the run';
COMMENT ON COLUMN last_metrics.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN last_metrics.name IS 'name of the metric';
COMMENT ON COLUMN last_metrics.source IS 'evaluation: of the coordinator; workers: mean over the workers, weighted by num_samples where all say it';
COMMENT ON COLUMN last_metrics.value IS 'its value';
COMMENT ON COLUMN last_metrics.round IS 'round of that value';

COMMENT ON VIEW runs IS 'One row a run.';
COMMENT ON COLUMN runs.run IS 'id of the run';
COMMENT ON COLUMN runs.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN runs.file IS 'the log';
COMMENT ON COLUMN runs.job_name IS 'name of the job';
COMMENT ON COLUMN runs.began IS 'when, UTC';
COMMENT ON COLUMN runs.last_event IS 'when its last event so far was written, UTC';
COMMENT ON COLUMN runs.status IS 'completed, failed, interrupted, running, crashed, or not said (version 0 logs say no end)';
COMMENT ON COLUMN runs.reason IS 'why it did not end well; null where it did';
COMMENT ON COLUMN runs.rounds_done IS 'rounds that ended well';
COMMENT ON COLUMN runs.rounds_planned IS 'rounds of the job';
COMMENT ON COLUMN runs.open_round IS 'round that was open when the log ends';
COMMENT ON COLUMN runs.open_spans IS 'spans that were open when the log ends';
COMMENT ON COLUMN runs.total_nodes IS 'workers the job lists, without spares that stood by in its last round that ended';
COMMENT ON COLUMN runs.last_survivors IS 'survivors of the last round that ended';
COMMENT ON COLUMN runs.last_metric IS 'the metric that matters most: the evaluation''s first, else the workers'' first';
COMMENT ON COLUMN runs.last_value IS 'its last value';
COMMENT ON COLUMN runs.duration_s IS 'from the beginning of the run to its last event, seconds';
COMMENT ON COLUMN runs.paused_s IS 'part of it between a session and the one that resumed it, seconds';
COMMENT ON COLUMN runs.paused_us IS 'part of it between a session and the one that resumed it, microseconds';
COMMENT ON COLUMN runs.duration_us IS 'from the beginning of the run to its last event, microseconds';
COMMENT ON COLUMN runs.rounds_s IS 'all rounds, seconds';
COMMENT ON COLUMN runs.rounds_us IS 'all rounds, microseconds';
COMMENT ON COLUMN runs.train_s IS 'sum of the longest training times, seconds';
COMMENT ON COLUMN runs.train_us IS 'sum of the longest training times, microseconds';
COMMENT ON COLUMN runs.aggregate_s IS 'time of the aggregate, seconds';
COMMENT ON COLUMN runs.aggregate_us IS 'time of the aggregate, microseconds';
COMMENT ON COLUMN runs.eval_s IS 'time of the evaluation on the coordinator, seconds';
COMMENT ON COLUMN runs.eval_us IS 'time of the evaluation on the coordinator, microseconds';
COMMENT ON COLUMN runs.bytes_up IS 'bytes pushed to workers; failed transfers and reused bytes not counted';
COMMENT ON COLUMN runs.bytes_down IS 'bytes pulled from workers; failed transfers and reused bytes not counted';
COMMENT ON COLUMN runs.survivors IS 'sum over the rounds';
COMMENT ON COLUMN runs.failures IS 'spans that failed';
COMMENT ON COLUMN runs.rejected IS 'weights not let into the aggregate';
COMMENT ON COLUMN runs.round_tries IS 'rounds, each try counted';
COMMENT ON COLUMN runs.resumes IS 'how often a new process took over';
COMMENT ON COLUMN runs.events IS 'events read';
COMMENT ON COLUMN runs.version IS 'newest schema version';
COMMENT ON COLUMN runs.host IS 'machine of the coordinator';
COMMENT ON COLUMN runs.params_sha256 IS 'SHA-256 of the initial params';
COMMENT ON COLUMN runs.params_path IS 'last good params, relative to the log';
COMMENT ON COLUMN runs.job IS 'the job as JSON';
COMMENT ON COLUMN runs.versions IS 'of roundlog, Python and packages, as JSON';

COMMENT ON VIEW workers IS 'One row a worker of a run.';
COMMENT ON COLUMN workers.run IS 'id of the run';
COMMENT ON COLUMN workers.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN workers.rank IS 'worker, from 0';
COMMENT ON COLUMN workers.address IS 'transport and place, as last joined';
COMMENT ON COLUMN workers.state IS 'up, left, left for good, or never seen';
COMMENT ON COLUMN workers.down_reason IS 'why it last left';
COMMENT ON COLUMN workers.rounds IS 'rounds it was expected in, each try counted';
COMMENT ON COLUMN workers.survived IS 'rounds its weights entered the aggregate';
COMMENT ON COLUMN workers.failed IS 'rounds it ended with a failure';
COMMENT ON COLUMN workers.rejected IS 'rounds its weights were kept out';
COMMENT ON COLUMN workers.absent IS 'rounds without a trace of it';
COMMENT ON COLUMN workers.push_s IS 'time of pushes, seconds';
COMMENT ON COLUMN workers.train_s IS 'time of training commands, seconds';
COMMENT ON COLUMN workers.pull_s IS 'time of pulls, seconds';
COMMENT ON COLUMN workers.wait_s IS 'nothing to do, seconds';
COMMENT ON COLUMN workers.dead_s IS 'dead, seconds';
COMMENT ON COLUMN workers.median_train_s IS 'median training time of rounds it survived, seconds';
COMMENT ON COLUMN workers.push_us IS 'time of pushes, microseconds';
COMMENT ON COLUMN workers.train_us IS 'time of training commands, microseconds';
COMMENT ON COLUMN workers.pull_us IS 'time of pulls, microseconds';
COMMENT ON COLUMN workers.wait_us IS 'nothing to do, microseconds';
COMMENT ON COLUMN workers.dead_us IS 'dead, microseconds';
COMMENT ON COLUMN workers.bytes_up IS 'bytes pushed to workers; failed transfers and reused bytes not counted';
COMMENT ON COLUMN workers.bytes_down IS 'bytes pulled from workers; failed transfers and reused bytes not counted';
COMMENT ON COLUMN workers.facts IS 'what the worker said of itself, as JSON';

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

COMMENT ON VIEW open_work IS 'One row a span without an end: what a crash hit, or what is going on now.';
COMMENT ON COLUMN open_work.run IS 'id of the run';
COMMENT ON COLUMN open_work.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN open_work.round IS 'round, from 0';
COMMENT ON COLUMN open_work.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN open_work.rank IS 'worker, from 0; null: the coordinator';
COMMENT ON COLUMN open_work.phase IS 'push, train, pull, aggregate or eval';
COMMENT ON COLUMN open_work.doing IS 'file that travels, or command';
COMMENT ON COLUMN open_work.start_s IS 'when it began, seconds since the run began';
COMMENT ON COLUMN open_work.so_far_s IS 'from its start to the last event, seconds';
COMMENT ON COLUMN open_work.seq IS 'number of the event in its run';

COMMENT ON VIEW run_medians IS 'One row a run: medians over its rounds that ended. Push, train and pull are each round''s longest.';
COMMENT ON COLUMN run_medians.run IS 'id of the run';
COMMENT ON COLUMN run_medians.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN run_medians.rounds IS 'rounds counted, each try';
COMMENT ON COLUMN run_medians.push_s IS 'longest push of a round, seconds';
COMMENT ON COLUMN run_medians.train_s IS 'longest training of a round, seconds';
COMMENT ON COLUMN run_medians.pull_s IS 'longest pull of a round, seconds';
COMMENT ON COLUMN run_medians.aggregate_s IS 'aggregate, seconds';
COMMENT ON COLUMN run_medians.eval_s IS 'evaluation, seconds';
COMMENT ON COLUMN run_medians.total_s IS 'a round''s duration, seconds';
COMMENT ON COLUMN run_medians.bytes_up IS 'bytes pushed in a round';
COMMENT ON COLUMN run_medians.bytes_down IS 'bytes pulled in a round';
COMMENT ON COLUMN run_medians.survivors IS 'survivors of a round';

COMMENT ON VIEW schema_info IS 'Versions of these views and of the events they were made for.';
COMMENT ON COLUMN schema_info.views_version IS 'rises when a view''s column changes its meaning or goes';
COMMENT ON COLUMN schema_info.events_version IS 'schema version of the events';

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
