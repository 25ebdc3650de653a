-- Held-out loss against megabytes moved, both ways and for all workers:
--     analyze sql -f examples/lm/loss.sql 'runs/*-lm-*.jsonl'
SELECT r.job_name AS run, m.round, round(m.value, 3) AS held_out_loss,
       round(sum(b.bytes_up + b.bytes_down) / 1e6, 1) AS "MB"
FROM metrics m JOIN runs r USING (run) LEFT JOIN rounds b ON b.run = m.run AND b.round < m.round
WHERE m.name = 'held_out_loss' AND m.round IN (0, 4, 8, 16, 100, 200, 400, 550, 800)
GROUP BY ALL ORDER BY ALL
