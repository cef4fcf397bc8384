#!/usr/bin/env bash
# The tables of README.md and tools/bench/README.md whose figures are planned, not measured: tools/bench/fits.sh,
# tools/bench/timeline.sh and tools/bench/lean.sh, of all nets, with the smallest device memory of GPT-2. A table stands between
# two comments of the text, which name it; a sentence with such a figure must be there as it is written here. Without an option
# this compares, and fails with the difference; tests/tools/test_figures.sh does so.
#
# usage: tools/bench/figures.sh [options]      defaults in brackets
#   --write yes|no [no]   put the tables into the text
#   --bin DIR [build/bin] where eps is
set -euo pipefail
shopt -s inherit_errexit lastpipe # lastpipe: a table at the end of a pipe sets `failed` here
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

write=no bin=build/bin
take_options "write bin" "$@"
need_programs "$bin"
make_work
nets=(wrn-28-2 dynamic_conv dynamic_conv-iwslt gpt2-124m)
failed=0

# table FILE NAME: what is on standard input stands in the file between "<!-- NAME -->" and "<!-- end -->"
table() {
    cat >"$work/table"
    awk -v name="$2" -v table="$work/table" '
        $0 == "<!-- end -->" { inside = 0 }
        !inside
        $0 == "<!-- " name " -->" { inside = found = 1; while ((getline line <table) > 0) print line }
        END { exit !found }' "$1" >"$work/text" || misuse "$1 has no place for $2"
    if [ "$write" = yes ]; then
        cat "$work/text" >"$1"
    else
        diff --label "$1" --label "tools/bench/figures.sh: $2" -U 0 "$1" "$work/text" || failed=1
    fi
}

# sentence FILE TEXT: is in the file, wherever its lines are broken
sentence() {
    grep -qF -- "$2" <<<"$(tr '\n' ' ' <"$1")" || { echo "$script: $1 does not have: $2" >&2; failed=1; }
}

# grouped NUMBER: 1,234,567
grouped() { sed -E ':a; s/([0-9])([0-9]{3})($|,)/\1,\2\3/; ta' <<<"$1"; }

# ratio NET FORM DIGITS
ratio() { awk -v form="$2" -v digits="$3" '$1 == "plain" { plain = $2 } $1 == form { printf "%.*f", digits, plain / $2 }' "$work/lean-$1"; }

# row FORM TEXT: its bytes and ratios
row() {
    local net
    printf '| %s |' "$2"
    for net in "${nets[@]}"; do
        awk -v form="$1" '
            function grouped(n) {
                while (match(n, /^[0-9]+/) && RLENGTH > 3) n = substr(n, 1, RLENGTH - 3) "," substr(n, RLENGTH - 2)
                return n
            }
            $1 == form { printf " %s", grouped($2); if (/less/) printf ": %.2f x", $4; found = 1 }
            END { printf "%s |", found ? "" : " " }' "$work/lean-$net"
    done
    echo
}

print_lean() {
    echo '| | WRN-28-2, 100 images of 32 x 32, SGD with momentum, `keep=0.3` | dynamic convolutions, 4 + 4 layers of 128, 128 pairs, `keep=0.4` | the published shape, 7 + 6 layers of 512, 128 pairs, `keep=0.4` | GPT-2 124M, 16 x 512 tokens, `keep=0.4` |'
    echo '|---|---|---|---|---|'
    row plain 'plain, by hand: PyTorch in fp32'
    row exact 'all kept, fp32'
    row fp16 'fp16, no master, moments, gradients and sums in 16 bits'
    row sparse '`--sparse keep=X,room=1` alone'
    row remade 'made again, the least device memory'
    row segments 'the same with checkpoints of some layers'
    row parts 'row groups: 50 parts of 2 images; 16 parts'
    row dense 'fp16 and these row groups'
    row together 'these and `--sparse`: batch norm over 2 images'
    row cut 'the same with checkpoints of some layers'
    row folded 'row groups in bf16, folded into the moments: AdamA, plain momentum'
    row folded-sparse 'these and `--sparse`'
    row ghosts 'ghost batches of 2 images'
    row both 'the same in the device memory with the least sum of both'
    row all 'ghost batches of 2, with checkpoints of some layers'
    row fours 'row groups of 4: batch norm over 4 images'
    row ghosts4 'ghost batches of 4 images, whose accuracy was measured'
    row ghosts4-cut 'the same with checkpoints of some layers'
    row folded4 'ghost batches of 4 images in bf16, folded into the momentum'
    row folded4-cut 'the same with checkpoints of some layers'
    row whole 'one part: batch norm over all images'
    row whole-cut 'the same with checkpoints of some layers'
}

tables() { awk -v RS= -v n="$1" 'NR == n' "$work/timeline"; } # NUMBER, from 1

for net in "${nets[@]}"; do tools/bench/lean.sh --what sizes --net "$net" --bin "$bin" >"$work/lean-$net"; done
tools/bench/timeline.sh --bin "$bin" >"$work/timeline"
print_lean | table tools/bench/README.md 'figures lean'
tables 1 | table tools/bench/README.md 'figures timeline'
tables 2 | table tools/bench/README.md 'figures timeline of two'
tables 3 | table tools/bench/README.md 'figures timeline of cards'
tools/bench/fits.sh --bin "$bin" --models 'Qwen3-(0.6|4|8|14|32)B|Llama-3.3' | table README.md 'what fits'

width=768 layers=12 heads=12 seq=1024
print_config 50257 >"$work/config.json"
least=$(XDG_CACHE_HOME=$work "$bin/eps" plan --model "$work/config.json" --seq 1024 --batch 8 --device cpu --minimum)
sentence tools/bench/README.md "$(grouped "$least") bytes, as planned"

sentence README.md "$(tools/bench/fits.sh --bin "$bin" --what tuned)"

# As it was measured on the H100 (tests/gpu/RECORD.md, large-32k and large-128k), where attention was cuDNN 9.14's, and with
# contributions in bf16.
width=4096 layers=24 heads=32 seq=2048
print_config 50257 >"$work/config.json"
predicted() { # TYPE ROWS
    XDG_CACHE_HOME=$work "$bin/eps" plan --timeline --json --model "$work/config.json" --device cuda --device-mem 75GiB --host-mem 2000GiB \
        --precision bf16 --attention scores --grad-dtype "$1" --batch "$2" --seq 2048 | grep -o '"tflops": [0-9]*[.0-9]*' | awk 'NR == 1 { printf "%.0f", $2 }'
}
sentence tools/bench/README.md "is predicted at $(predicted fp32 16) and $(predicted fp32 64); in bf16, at $(predicted bf16 16) and $(predicted bf16 64)"

of() { ratio wrn-28-2 "$1" 1; }
sentence tools/bench/README.md "100 images, device and host | $(of ghosts4) x less"
sentence tools/bench/README.md "with checkpoints of some layers: the same bits | $(of ghosts4-cut) x less"
sentence tools/bench/README.md "with checkpoints; accuracy not measured | $(of folded4-cut) x less"
sentence tools/bench/README.md "fp16, 16 parts; accuracy not measured | $(ratio dynamic_conv-iwslt together 1) x less"
sentence tools/bench/README.md "AdamA's moments | $(ratio dynamic_conv-iwslt folded-sparse 1) x less; without \`--sparse\` $(ratio dynamic_conv-iwslt folded 1) x"
tools/bench/derived.sh --what planned --bin "$bin" >"$work/derived"
while read -r stored derived; do
    sentence proto/plan/README.md "$(grouped "$stored"); $(grouped "$derived") |"
done <"$work/derived"

# both COMMIT OPTIMIZER: bytes of both sides, of BERT-Large's shape in 8 row groups
width=1024 layers=24 heads=16 seq=128
print_config 30522 >"$work/config.json"
both() {
    local ask=(--model "$work/config.json" --batch 32 --seq 128 --microbatch 4 --parts 8 --commit "$1" --optimizer "$2" --device cpu
        --host-mem 64GiB) least plan
    least=$(XDG_CACHE_HOME=$work "$bin/eps" plan "${ask[@]}" --minimum)
    plan=$(XDG_CACHE_HOME=$work "$bin/eps" plan "${ask[@]}" --device-mem "$least" --json)
    echo $((least + $(planned host <<<"$plan")))
}
fenced=$(both fenced adamw) folded=$(both folded adama)
sentence tools/bench/README.md "(\`--optimizer adamw --commit fenced\`), $(grouped "$fenced") bytes"
sentence tools/bench/README.md "(\`--optimizer adama --commit folded\`), $(grouped "$folded"). That is $(awk -v a="$folded" -v b="$fenced" 'BEGIN { printf "%.1f", 100 - 100 * a / b }') % less"
[ "$failed" = 0 ]
