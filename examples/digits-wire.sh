#!/bin/sh
# The built-in job with its files as they are and encoded, side by side.
#
#     sh examples/digits-wire.sh      # needs runner and analyze on the PATH; a minute
set -eu
here=$(cd "$(dirname "$0")/../runner/builtin" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$here/train.py" "$here/digits.npz" "$folder"
for wire in 'plain plain' 'bfloat16 bfloat16' 'bfloat16 int8' 'int8 int8'; do
    push=${wire% *} pull=${wire#* }
    { sed "s/^name = .*/name = \"$push-$pull\"/; s/^DIGITS_FAIL = .*/DIGITS_FAIL = \"\"/" "$here/job.toml"
      printf '\n[wire]\npush = "%s"\npull = "%s"\n' "$push" "$pull"; } >"$folder/job.toml"
    runner start --quiet --runs "$folder/runs" "$folder/job.toml" >/dev/null
done
analyze sql --runs "$folder/runs" --format markdown "
    SELECT job_name AS \"push, pull\",
           (SELECT string_agg(printf('%.3f', value), ' ' ORDER BY round) FROM metrics m
            WHERE m.run = r.run AND rank IS NULL AND name = 'accuracy') AS \"accuracy, round by round\",
           (SELECT printf('%.2f', sum(size_bytes) / 1e6) FROM spans s
            WHERE s.run = r.run AND regexp_matches(path, '^(params|weights)-')) AS MB
    FROM runs r ORDER BY run"
