-- What people ask of runs, on top of views.sql: what bounded a round, how fast files moved, who is slow, which
-- machines fail. Each is documented below, like those.

CREATE VIEW critical_path AS
WITH arrived AS (
    SELECT s.run_no, s.round, s.attempt, s.rank, max(s.end_us) AS end_us
    FROM store.spans s JOIN store.worker_rounds w USING (run_no, round, attempt, rank)
    WHERE s.kind = 'pull' AND NOT s.failed AND NOT s.open AND w.state = 'survived' GROUP BY ALL),
latest AS (
    SELECT * FROM arrived
    QUALIFY row_number() OVER (PARTITION BY run_no, round, attempt ORDER BY end_us DESC, rank) = 1)
SELECT u.run, r.run_no, r.round, r.attempt, l.rank, w.push_us / 1e6 AS push_s, w.train_us / 1e6 AS train_s,
       w.pull_us / 1e6 AS pull_s, (l.end_us - r.start_us - w.push_us - w.train_us - w.pull_us) / 1e6 AS other_s,
       (r.end_us - l.end_us) / 1e6 AS after_s, r.duration_us / 1e6 AS duration_s, w.push_us, w.train_us, w.pull_us,
       l.end_us - r.start_us - w.push_us - w.train_us - w.pull_us AS other_us, r.end_us - l.end_us AS after_us,
       r.duration_us
FROM latest l JOIN store.rounds r USING (run_no, round, attempt)
JOIN store.worker_rounds w ON w.run_no = l.run_no AND w.round = l.round AND w.attempt = l.attempt AND w.rank = l.rank
JOIN store.runs u ON u.run_no = l.run_no WHERE r.done;

CREATE VIEW bandwidth AS
WITH moves AS (
    SELECT run_no, round, attempt, kind, failed, size_bytes - coalesce(reused, 0) AS moved, end_us,
           -- Only what no earlier transfer had covered already.
           greatest(start_us, coalesce(max(end_us) OVER (PARTITION BY run_no, round, attempt, kind
               ORDER BY start_us, end_us, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), start_us)) AS from_us
    FROM store.spans WHERE kind IN ('push', 'pull') AND NOT open),
summed AS (
    SELECT run_no, round, attempt, kind AS direction, count(*) AS transfers,
           store.whole(coalesce(sum(moved) FILTER (NOT failed), 0)) AS bytes,
           store.whole(sum(greatest(end_us - from_us, 0))) AS busy_us
    FROM moves GROUP BY ALL)
SELECT u.run, s.run_no, s.round, s.attempt, s.direction, s.transfers, s.bytes, s.busy_us / 1e6 AS busy_s, s.busy_us,
       CASE WHEN s.busy_us > 0 THEN s.bytes * 1e6 / s.busy_us END AS bytes_per_s
FROM summed s JOIN store.runs u USING (run_no);

CREATE VIEW stragglers AS
WITH trained AS (
    SELECT run_no, rank, train_us / nullif(median(train_us) OVER (PARTITION BY run_no, round, attempt), 0) AS ratio
    FROM store.worker_rounds WHERE state = 'survived'),
each AS (SELECT run_no, rank, count(*) AS survived, median(ratio) AS train_ratio FROM trained GROUP BY ALL),
lasts AS (SELECT run_no, rank, count(*) AS times_last FROM critical_path GROUP BY ALL)
SELECT u.run, e.run_no, e.rank, e.survived, coalesce(l.times_last, 0) AS times_last, e.train_ratio,
       row_number() OVER (PARTITION BY e.run_no
                          ORDER BY coalesce(l.times_last, 0) DESC, e.train_ratio DESC NULLS LAST, e.rank) AS place
FROM each e LEFT JOIN lasts l USING (run_no, rank) JOIN store.runs u USING (run_no);

CREATE VIEW hosts AS
WITH placed AS (
    SELECT *, CASE WHEN address LIKE 'ssh:%' THEN substr(address, 5) ELSE split_part(address, ':', 1) END AS host
    FROM store.places LEFT JOIN store.work USING (run_no, rank) WHERE address IS NOT NULL)
SELECT p.host, count(DISTINCT p.run_no) AS runs, count(*) AS workers, store.whole(coalesce(sum(p.rounds), 0)) AS rounds,
       store.whole(coalesce(sum(p.survived), 0)) AS survived, store.whole(coalesce(sum(p.failed), 0)) AS failed,
       store.whole(coalesce(sum(p.rejected), 0)) AS rejected, store.whole(coalesce(sum(p.absent), 0)) AS absent,
       (sum(p.failed) + sum(p.rejected) + sum(p.absent)) / nullif(sum(p.rounds), 0) AS failure_rate
FROM placed p GROUP BY p.host;

CREATE VIEW costs AS
WITH moves AS (
    SELECT e.run_no, e.rank, e.kind, e.t_us, s.end_us AS session_us,
           try_cast(json_extract_string(e.facts, '$.price_per_hour') AS DOUBLE) AS price,
           lead(e.t_us) OVER (PARTITION BY e.run_no, e.rank ORDER BY e.seq) AS next_us, e.seq
    FROM store.events e ASOF JOIN store.session_ends s ON e.run_no = s.run_no AND e.seq >= s.from_seq
    WHERE e.kind IN ('worker_up', 'worker_down') AND e.rank IS NOT NULL),
stays AS (
    SELECT run_no, rank, seq, greatest(least(coalesce(next_us, session_us), session_us) - t_us, 0) AS up_us,
           CASE WHEN price >= 0 AND isfinite(price) THEN price END AS price
    FROM moves WHERE kind = 'worker_up'),
billed AS (
    SELECT run_no, rank, store.whole(sum(up_us)) AS up_us, arg_max(price, seq) AS price,
           sum(up_us * price) / 3600e6 AS cost
    FROM stays GROUP BY ALL)
SELECT u.run, b.run_no, b.rank, p.address, b.price AS price_per_hour, b.up_us / 1e6 AS connected_s,
       coalesce(w.push_us + w.train_us + w.pull_us, 0) / 1e6 AS worked_s, b.cost,
       b.cost * greatest(1 - coalesce(w.push_us + w.train_us + w.pull_us, 0) / nullif(b.up_us, 0), 0) AS idle_cost,
       b.up_us AS connected_us, coalesce(w.push_us + w.train_us + w.pull_us, 0) AS worked_us
FROM billed b JOIN store.runs u USING (run_no) LEFT JOIN store.work w ON b.run_no = w.run_no AND b.rank = w.rank
LEFT JOIN store.places p ON b.run_no = p.run_no AND b.rank = p.rank;

COMMENT ON VIEW critical_path IS 'One row a try of a round that ended: the survivor that delivered last, and where the time until then and after it went. push, train, pull, other and after add up to the duration.';
COMMENT ON COLUMN critical_path.run IS 'id of the run';
COMMENT ON COLUMN critical_path.run_no IS 'number of the run among those loaded';
COMMENT ON COLUMN critical_path.round IS 'round, from 0';
COMMENT ON COLUMN critical_path.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN critical_path.rank IS 'the survivor that delivered last';
COMMENT ON COLUMN critical_path.push_s IS 'its pushes, seconds';
COMMENT ON COLUMN critical_path.train_s IS 'its training, seconds';
COMMENT ON COLUMN critical_path.pull_s IS 'its pulls, seconds';
COMMENT ON COLUMN critical_path.other_s IS 'until it had delivered, in none of these: waiting, rests between tries, encoding; seconds';
COMMENT ON COLUMN critical_path.after_s IS 'from its delivery to the end of the round: grace time, checks, aggregate, evaluation; seconds';
COMMENT ON COLUMN critical_path.duration_s IS 'of the round, seconds';
COMMENT ON COLUMN critical_path.push_us IS 'push_s in microseconds';
COMMENT ON COLUMN critical_path.train_us IS 'train_s in microseconds';
COMMENT ON COLUMN critical_path.pull_us IS 'pull_s in microseconds';
COMMENT ON COLUMN critical_path.other_us IS 'other_s in microseconds';
COMMENT ON COLUMN critical_path.after_us IS 'after_s in microseconds';
COMMENT ON COLUMN critical_path.duration_us IS 'duration_s in microseconds';
COMMENT ON VIEW bandwidth IS 'One row a try of a round and direction: bytes over the time in which any transfer ran.';
COMMENT ON COLUMN bandwidth.run IS 'id of the run';
COMMENT ON COLUMN bandwidth.run_no IS 'number of the run among those loaded';
COMMENT ON COLUMN bandwidth.round IS 'round, from 0; null: outside rounds';
COMMENT ON COLUMN bandwidth.attempt IS 'which try of the round, from 1';
COMMENT ON COLUMN bandwidth.direction IS 'push or pull';
COMMENT ON COLUMN bandwidth.transfers IS 'how many there were, failed ones included';
COMMENT ON COLUMN bandwidth.bytes IS 'that arrived; reused ones not counted';
COMMENT ON COLUMN bandwidth.busy_s IS 'in which at least one of them ran, seconds';
COMMENT ON COLUMN bandwidth.busy_us IS 'busy_s in microseconds';
COMMENT ON COLUMN bandwidth.bytes_per_s IS 'bytes by busy_s';
COMMENT ON VIEW stragglers IS 'One row a worker that survived a round: how slow it is next to the others.';
COMMENT ON COLUMN stragglers.run IS 'id of the run';
COMMENT ON COLUMN stragglers.run_no IS 'number of the run among those loaded';
COMMENT ON COLUMN stragglers.rank IS 'worker';
COMMENT ON COLUMN stragglers.survived IS 'rounds its weights entered';
COMMENT ON COLUMN stragglers.times_last IS 'how often it delivered last of the survivors';
COMMENT ON COLUMN stragglers.train_ratio IS 'its training time by the median survivor''s of the same round; the median over rounds';
COMMENT ON COLUMN stragglers.place IS '1: the worst straggler of the run';
COMMENT ON VIEW hosts IS 'One row a machine over all runs that are loaded: how reliable it is.';
COMMENT ON COLUMN hosts.host IS 'user, name and port of a machine behind SSH; local or sim for all such workers';
COMMENT ON COLUMN hosts.runs IS 'runs it took part in';
COMMENT ON COLUMN hosts.workers IS 'workers it was, in all runs';
COMMENT ON COLUMN hosts.rounds IS 'rounds they were expected in';
COMMENT ON COLUMN hosts.survived IS 'rounds their weights entered';
COMMENT ON COLUMN hosts.failed IS 'rounds in which they failed';
COMMENT ON COLUMN hosts.rejected IS 'rounds in which their weights were kept out';
COMMENT ON COLUMN hosts.absent IS 'rounds in which they left no trace';
COMMENT ON COLUMN hosts.failure_rate IS 'share of rounds in which they failed, were kept out or were absent';
COMMENT ON VIEW costs IS 'One row a worker: what it cost while it was connected, by the prices the job names.';
COMMENT ON COLUMN costs.run IS 'id of the run';
COMMENT ON COLUMN costs.run_no IS 'number of the run among those loaded';
COMMENT ON COLUMN costs.rank IS 'worker';
COMMENT ON COLUMN costs.address IS 'transport and place, as last joined';
COMMENT ON COLUMN costs.price_per_hour IS 'as the job last said, in the user''s currency; null where it says none';
COMMENT ON COLUMN costs.connected_s IS 'from joining to leaving or the end of the run, all its stays together, seconds';
COMMENT ON COLUMN costs.worked_s IS 'of these, in pushes, training and pulls; seconds';
COMMENT ON COLUMN costs.cost IS 'connected time by its price; null where the job names none. A machine that is lost or kept idle by its owner may be billed all the same';
COMMENT ON COLUMN costs.idle_cost IS 'the part of the cost in which it neither moved files nor trained';
COMMENT ON COLUMN costs.connected_us IS 'connected_s in microseconds';
COMMENT ON COLUMN costs.worked_us IS 'worked_s in microseconds';
