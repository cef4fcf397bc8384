# shellcheck shell=bash
# Single operations, each compared with its limit in the same run by bench_cuda; attention and convolutions
# with PyTorch.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

# told PREFIX: records lines "NAME|NUMBER|TEXT" in $work/said with this prefix as facts
told() {
    local id number text
    while IFS='|' read -r id number text; do
        [ -z "$text" ] || [[ $id != "$1"* ]] || fact "$id" "$number: $text"
    done <"$work/said"
}

# bench WHAT [SECONDS]: runs bench_cuda; its lines "NAME|RATIO|TEXT" are in $work/said. If it fails, they are recorded as facts
bench() {
    local program=$bin/bench_cuda
    local -a small=()

    [ -z "$simulate" ] || { program=$simulate/bench_cuda small=(--small); }
    take_cudnn
    watch_clocks
    benching=$1
    limited "${2:-60}" "${ours[@]}" "$program" --module "$(module)" "${small[@]}" "$1"
    local rc=$?
    benching=''
    watch_clocks_end
    [ $rc -eq 0 ] || { failed "$1-ends" "bench_cuda $1: $(why $rc "${2:-60}")"; told ''; }
    return $rc
}

# Records what bench_cuda had measured when the part is told to end.
cut_off_bench() {
    [ -z "${benching-}" ] || told ''
}
cut_off() { cut_off_bench; }

# verdict NAME TARGET PREFIX...: records each line with these prefixes as a fact; the smallest ratio is judged
verdict() {
    local name=$1 target=$2 id ratio text least='' of='' n=0 prefix
    shift 2
    while IFS='|' read -r id ratio text; do
        for prefix in "$@"; do
            [[ $id == "$prefix"* ]] || continue
            fact "$id" "$ratio: $text"
            n=$((n + 1))
            if [ -z "$least" ] || awk -v a="$ratio" -v b="$least" 'BEGIN { exit !(a < b) }'; then
                least=$ratio of=$id
            fi
            break
        done
    done <"$work/said"
    if [ $n -eq 0 ]; then
        missing "$name" "nothing was measured"
    else
        measured "$name" "$least" "$target" "the least of $n, $of"
    fi
}

part_products() {
    bench products || return 0
    verdict products-4096 0.97 product-4096-
    verdict products-8192 0.97 product-8192-
    verdict products-chosen 0.97 chosen-4096-
}

part_rows() {
    bench rows || return 0
    verdict rows 0.8 row-
    told other-
}

part_copies() {
    bench copies || return 0
    verdict pull 0.95 pull-
    verdict push 0.95 push-
    told other-
}

# Attention of families, by whatever path: no claim.
part_families() {
    bench families || return 0
    told family-
}

# agreement NAME MOST [WHAT]: two computations, if both ran, agree except for bf16 rounding to 8 bits
agreement() {
    local most what=${3-"our own ${1%-agreement} and cuDNN's"}
    most=$(awk -F '|' '/^agreement-/ { n++; d = $2 ~ /^[0-9]/ ? $2 + 0 : 9; if (d > most) most = d }
        END { print n ? most + 0 : "" }' "$work/said")
    if [ -z "$most" ]; then
        missing "$1" "cuDNN is not there to compare with"
    elif awk -v a="$most" -v most="$2" 'BEGIN { exit !(a <= most) }'; then
        passed "$1" "$what: at most $most of results and gradients apart, of $2"
    else
        failed "$1" "$what: $most of results or gradients apart, more than $2"
    fi
}

# repeats NAME [WAY]: two runs give the same bits, forward and backward
repeats() {
    local others way=${2-through cuDNN}
    others=$(awk -F '|' '/^repeat-/ { n++; others += $2 } END { print n ? others + 0 : "" }' "$work/said")
    if [ -z "$others" ]; then
        missing "$1" "cuDNN is not there to run twice"
    elif [ "$others" = 0 ]; then
        passed "$1" "two runs $way gave the same bits, forward and backward"
    else
        failed "$1" "$others values were others in a second run $way"
    fi
}

# peers NAME SECONDS: runs tools/bench/peer_NAME.py; its lines are in $work/theirs
peers() {
    limited "$2" "$python" "tools/bench/peer_$1.py"
    local rc=$?
    cp "$work/said" "$work/theirs"
    told pytorch
    [ $rc -eq 0 ] || missing "$1-peer" "tools/bench/peer_$1.py: $(why $rc "$2")"
}

# beside_peers THEIRS OURS: compares our lines "KIND-DIRECTION-HEAD-TOKENS|MS|...", KIND cudnn or own, with PyTorch's lines
# of the same form, KIND cudnn for its cuDNN backend and default for its own choice. Prints attention-... with the ratio to
# the former, default-... with the ratio to the latter, and alone-... if PyTorch has neither.
beside_peers() {
    awk -F '|' '
        FILENAME == ARGV[1] { if ($1 ~ /^(cudnn|default)-/) { peer[$1] = $2; way[$1] = $3 } next }
        $1 !~ /^(cudnn|own)-/ { next }
        { shape = $1; sub(/^[a-z]*-/, "", shape); found = 0 }
        ("cudnn-" shape) in peer { of = "cudnn-" shape; found = 1
            printf "attention-%s|%.3f|%s ms, %s; PyTorch through cuDNN %s ms%s\n", $1, peer[of] / $2, $2, $3, peer[of], way[of] }
        ("default-" shape) in peer { of = "default-" shape; found = 1
            printf "default-%s|%.3f|of PyTorch by default, %s ms%s\n", $1, peer[of] / $2, peer[of], way[of] }
        !found { printf "alone-%s|%s|ms, %s\n", $1, $2, $3 }' "$1" "$2"
}

part_attention() {
    bench attention || return 0
    told agreement-
    agreement attention-agreement 0.02
    repeats attention-repeat
    cp "$work/said" "$work/ours"
    if [ -n "$simulate" ]; then # so that the rest is tried
        sed -n 's/^own-\(.*|\).* TFLOP.*/cudnn-\1/p; s/^own-\(.*|\).* TFLOP.*/default-\1/p' "$work/ours" >"$work/theirs"
    else
        peers attention 70
    fi
    beside_peers "$work/theirs" "$work/ours" >"$work/said"
    told alone-
    told default-
    verdict attention-cudnn-forward 0.97 attention-cudnn-forward-
    verdict attention-cudnn-backward 0.97 attention-cudnn-backward-
    verdict attention-own-forward 0.5 attention-own-forward-
    verdict attention-own-backward 0.5 attention-own-backward-
}

# ResNet-50's convolutions at 64 images of 224 x 224: of each direction, all of the net's beside PyTorch's.
part_convolutions() {
    . tools/gpu/conformance.sh
    take_cudnn
    if [ -n "${EPS_CUDNN-}" ]; then
        conforms cudnn-conv2d test_conv2d 60 "$EPS_CUDNN"
    else
        missing cudnn-conv2d "cuDNN is not there"
    fi
    bench convolutions 70 || return 0
    told cudnn-
    told own-
    told net-
    repeats convolutions-repeat
    agreement convolutions-agreement 0.005
    cp "$work/said" "$work/ours"
    if [ -n "$simulate" ]; then # so that the rest is tried
        cp "$work/ours" "$work/theirs"
    else
        peers convolutions 45
    fi
    awk -F '|' '
        FILENAME == ARGV[1] { peer[$1] = $2; next }
        /^net-/ && $1 in peer { name = $1; sub(/^net-/, "", name)
            printf "convolutions-%s|%.3f|%s ms; PyTorch through cuDNN %s ms\n", name, peer[$1] / $2, $2, peer[$1] }
        /^cudnn-/ && $1 in peer { printf "peer-%s|%s|ms, PyTorch through cuDNN, of %s ms\n", $1, peer[$1], $2 }' \
        "$work/theirs" "$work/ours" >"$work/said"
    told peer-
    verdict convolutions-forward 0.8 convolutions-forward
    verdict convolutions-input 0.8 convolutions-input
    verdict convolutions-weights 0.5 convolutions-weights
}
