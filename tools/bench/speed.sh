#!/usr/bin/env bash
# Tokens per second of `eps train` and of PyTorch at the same model, in turns, so that a busy machine slows both alike.
# Prints one line per round and the median ratio. Ours runs as users run it: a private daemon and worker, two processes.
#
# usage: tools/bench/speed.sh [options]      defaults in brackets
#   --width N [384] --layers N [6] --heads N [6] --vocabulary N [256] --batch N [8] --seq N [256]
#   --threads N [all]     of both sides
#   --rounds N [5]        ours and the peer once each
#   --steps N [8]         measured per round, after 2 to warm up
#   --checkpoint on|off [on]   whether the peer recomputes, as ours does
#   --python PATH [/usr/bin/python3]  one that has torch
#   --bin DIR [build/bin]      where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

width=384 layers=6 heads=6 vocabulary=256 batch=8 seq=256
threads=$(nproc) rounds=5 steps=8 checkpoint=on python=/usr/bin/python3 bin=build/bin
take_options "width layers heads vocabulary batch seq threads rounds steps checkpoint python bin" "$@"
need_programs "$bin"
"$python" -c 'import torch' 2>/dev/null || { echo "speed.sh: $python has no torch (Debian: python3-torch)" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

print_config "$vocabulary" >"$work/config.json"
# Random tokens, u16 (.bin), enough for one window per row and step.
"$python" - "$work/data.bin" "$vocabulary" $(((steps + 2) * batch * seq + 1)) <<'PY'
import array, random, sys
path, vocabulary, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random.seed(1)
with open(path, "wb") as f:
    array.array("H", (random.randrange(vocabulary) for _ in range(n))).tofile(f)
PY

ours() {
    rm -rf "$work/run"
    env -u OPENBLAS_CORETYPE OMP_NUM_THREADS="$threads" "$bin/eps" train --model "$work/config.json" \
        --data "$work/data.bin" --eval-data "$work/data.bin" --out "$work/run" --steps $((steps + 2)) --save-every 0 \
        --batch "$batch" --seq "$seq" --lr 3e-4 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    "$python" - "$work/run/metrics.jsonl" <<'PY'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print(round(statistics.median(r["tokens_per_s"] for r in rows[2:] if "tokens_per_s" in r), 1))
PY
}

# peer ATTENTION OPTIMIZER
peer() {
    "$python" tools/bench/peer_pytorch.py --width "$width" --layers "$layers" --heads "$heads" \
        --vocabulary "$vocabulary" --batch "$batch" --seq "$seq" --threads "$threads" --steps "$steps" \
        --checkpoint "$checkpoint" --attention "$1" --optimizer "$2" | tail -1
}
field() { sed -n "s/.*\"$1\": \"\{0,1\}\([^\",}]*\).*/\1/p"; }

best=$(peer all all) # which way is this PyTorch's fastest
attention=$(field attention <<<"$best") optimizer=$(field optimizer <<<"$best")
echo "width $width, $layers layers, $batch x $seq tokens, vocabulary $vocabulary, $threads threads, fp32," \
    "peer $(field peer <<<"$best") ($attention attention, $optimizer AdamW, checkpoint $checkpoint)"

ratios=()
for round in $(seq "$rounds"); do
    mine=$(ours)
    theirs=$(peer "$attention" "$optimizer" | field tokens_per_s)
    ratios+=("$(awk -v a="$mine" -v b="$theirs" 'BEGIN { printf "%.3f", a / b }')")
    echo "round $round: eps $mine tokens/s, peer $theirs, ratio ${ratios[-1]}"
done
printf '%s\n' "${ratios[@]}" | sort -n | awk '{ r[NR] = $1 } END { print "median ratio " r[int((NR + 1) / 2)] }'
