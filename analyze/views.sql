-- The questions that can be asked of loaded logs, each documented where it is made; columns of "events" that the
-- contract names, from the contract. Times are microseconds in columns ending in _us, which add up exactly, and
-- seconds in those ending in _s.

CREATE VIEW logs AS
SELECT l.log_no, l.file, l.size_bytes, l.lines, coalesce(r.rejects, 0) AS rejects, l.lines - coalesce(r.rejects, 0) AS events,
       coalesce(g.missing, 0) AS missing, l.running, l.oldest_version, l.newest_version, l.shuffled, l.cut
FROM store.logs l
LEFT JOIN (SELECT log_no, count(*) AS rejects FROM store.rejects GROUP BY ALL) r USING (log_no)
LEFT JOIN (SELECT log_no, least(sum(missing), 9223372036854775807)::BIGINT AS missing FROM store.gaps GROUP BY ALL) g USING (log_no);
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

CREATE VIEW events AS
SELECT u.run, e.run_no, l.file, e.line, e.byte_offset, e.* EXCLUDE (run_no, run, line, byte_offset)
FROM store.events e JOIN store.runs u USING (run_no) JOIN store.logs l USING (log_no);
COMMENT ON VIEW events IS 'One row an event, as the contract says it, whatever its kind; fields that a kind does not have are null.';
COMMENT ON COLUMN events.run IS 'id of the run';
COMMENT ON COLUMN events.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN events.file IS 'the log';
COMMENT ON COLUMN events.line IS 'line in the log, from 1';
COMMENT ON COLUMN events.byte_offset IS 'byte of the log at which the line begins';
COMMENT ON COLUMN events.t_us IS 't in microseconds';
COMMENT ON COLUMN events.duration_us IS 'duration_s in microseconds';
COMMENT ON COLUMN events.extra IS 'fields that this analyzer does not know, as JSON';

CREATE VIEW rejects AS
SELECT l.file, r.line, r.byte_offset, r.length, r.reason, r.detail, r.head
FROM store.rejects r JOIN store.logs l USING (log_no);
COMMENT ON VIEW rejects IS 'One row a line that is no event, with the reason.';
COMMENT ON COLUMN rejects.file IS 'the log';
COMMENT ON COLUMN rejects.line IS 'line in the log, from 1';
COMMENT ON COLUMN rejects.byte_offset IS 'byte of the log at which the line begins';
COMMENT ON COLUMN rejects.length IS 'bytes of the line without its newline';
COMMENT ON COLUMN rejects.reason IS 'torn, not JSON, not UTF-8, NUL bytes, empty line, line too long, not an object, duplicate key, non-finite number, lone surrogate, wrong envelope, missing field, wrong type, unknown run, repeated seq, seq out of order or time going back';
COMMENT ON COLUMN rejects.detail IS 'what exactly';
COMMENT ON COLUMN rejects.head IS 'first 200 bytes of the line';

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
COMMENT ON VIEW damage IS 'One row a file and kind of damage, missing events included.';
COMMENT ON COLUMN damage.file IS 'the log';
COMMENT ON COLUMN damage.reason IS 'as in rejects, or: missing seq';
COMMENT ON COLUMN damage.lines IS 'how many lines, or events that are missing';
COMMENT ON COLUMN damage.first_line IS 'where it shows first';
COMMENT ON COLUMN damage.example IS 'detail of the first';

CREATE VIEW spans AS
SELECT u.run, s.run_no, s.round, s.attempt, s.rank, s.kind, s.phase, s.start_us / 1e6 AS start_s, s.end_us / 1e6 AS end_s,
       s.duration_us / 1e6 AS duration_s, s.start_us, s.end_us, s.duration_us, s.failed, s.open, s.path, s.size_bytes,
       s.reused, s.plain_bytes, s.exit_code, s.output_tail, s.output_path, s.error, s.try, s.seq
FROM store.spans s JOIN store.runs u USING (run_no);
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

CREATE VIEW segments AS
SELECT u.run, s.run_no, r.nth, s.round, s.attempt, s.rank, s.state, s.phase, s.open, s.start_us / 1e6 AS start_s,
       s.end_us / 1e6 AS end_s, s.start_us, s.end_us, s.end_us - s.start_us AS duration_us, s.seq
FROM store.segments s JOIN store.rounds r USING (run_no, round, attempt) JOIN store.runs u USING (run_no);
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

CREATE VIEW worker_rounds AS
SELECT u.run, w.run_no, r.nth, w.round, w.attempt, w.rank, w.state, w.push_us / 1e6 AS push_s, w.train_us / 1e6 AS train_s,
       w.pull_us / 1e6 AS pull_s, w.push_us, w.train_us, w.pull_us, w.bytes_up, w.bytes_down, w.failures
FROM store.worker_rounds w JOIN store.rounds r USING (run_no, round, attempt) JOIN store.runs u USING (run_no);
COMMENT ON VIEW worker_rounds IS 'One row a worker and try of a round, also where the worker took no step.';
COMMENT ON COLUMN worker_rounds.run IS 'id of the run';
COMMENT ON COLUMN worker_rounds.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN worker_rounds.nth IS 'place of this try of the round in the run, from 1';
COMMENT ON COLUMN worker_rounds.round IS 'round, from 0';
COMMENT ON COLUMN worker_rounds.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN worker_rounds.rank IS 'worker, from 0; null: the coordinator';
COMMENT ON COLUMN worker_rounds.state IS 'survived, rejected, failed, absent (it took no step, be it that it could not be reached), open, or not used';
COMMENT ON COLUMN worker_rounds.push_s IS 'time of pushes, seconds';
COMMENT ON COLUMN worker_rounds.train_s IS 'time of training commands, seconds';
COMMENT ON COLUMN worker_rounds.pull_s IS 'time of pulls, seconds';
COMMENT ON COLUMN worker_rounds.push_us IS 'time of pushes, microseconds';
COMMENT ON COLUMN worker_rounds.train_us IS 'time of training commands, microseconds';
COMMENT ON COLUMN worker_rounds.pull_us IS 'time of pulls, microseconds';
COMMENT ON COLUMN worker_rounds.bytes_up IS 'bytes pushed to workers; failed transfers and reused bytes not counted';
COMMENT ON COLUMN worker_rounds.bytes_down IS 'bytes pulled from workers; failed transfers and reused bytes not counted';
COMMENT ON COLUMN worker_rounds.failures IS 'spans that failed';

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

CREATE VIEW metrics AS
SELECT u.run, m.run_no, m.round, m.attempt, m.rank, m.name, m.value, m.num_samples, m.t_us / 1e6 AS t_s, m.position, m.seq
FROM store.metrics m JOIN store.runs u USING (run_no);
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

CREATE VIEW open_work AS
SELECT u.run, s.run_no, s.round, s.attempt, s.rank, s.phase, s.path AS doing, s.start_us / 1e6 AS start_s,
       s.duration_us / 1e6 AS so_far_s, s.seq
FROM store.spans s JOIN store.runs u USING (run_no) WHERE s.open;
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

CREATE VIEW run_medians AS
SELECT u.run, r.run_no, count(*) AS rounds, median(r.longest_push_us) / 1e6 AS push_s,
       median(r.longest_train_us) / 1e6 AS train_s, median(r.longest_pull_us) / 1e6 AS pull_s,
       median(r.aggregate_us) / 1e6 AS aggregate_s, median(r.eval_us) / 1e6 AS eval_s,
       median(r.duration_us) / 1e6 AS total_s, median(coalesce(r.bytes_up, 0)) AS bytes_up,
       median(coalesce(r.bytes_down, 0)) AS bytes_down, median(r.survivors) AS survivors
FROM store.rounds r JOIN store.runs u USING (run_no) WHERE r.done GROUP BY ALL;
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

CREATE VIEW last_metrics AS
SELECT run, run_no, name, source, value, round FROM round_metrics
QUALIFY row_number() OVER (PARTITION BY run_no, name ORDER BY source, nth DESC) = 1;
COMMENT ON VIEW last_metrics IS 'The last value of each metric of a run; the evaluation''s where there is one.';
COMMENT ON COLUMN last_metrics.run IS 'id of the run';
COMMENT ON COLUMN last_metrics.run_no IS 'number of the run among those loaded; tells two files with the same run apart';
COMMENT ON COLUMN last_metrics.name IS 'name of the metric';
COMMENT ON COLUMN last_metrics.source IS 'evaluation: of the coordinator; workers: mean over the workers, weighted by num_samples where all say it';
COMMENT ON COLUMN last_metrics.value IS 'its value';
COMMENT ON COLUMN last_metrics.round IS 'round of that value';

COMMENT ON VIEW schema_info IS 'Versions of these views and of the events they were made for.';
COMMENT ON COLUMN schema_info.views_version IS 'rises when a view''s column changes its meaning or goes';
COMMENT ON COLUMN schema_info.events_version IS 'schema version of the events';
