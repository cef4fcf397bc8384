# shellcheck shell=bash
# Operations by themselves, each against its limit in the same run: bench_cuda measures, and says what of; the peer for
# attention is PyTorch.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

# bench WHAT: bench_cuda's lines "NAME|RATIO|TEXT", in $work/said
bench() {
    local program=$bin/bench_cuda
    local -a small=()

    [ -z "$simulate" ] || { program=$simulate/bench_cuda small=(--small); }
    take_cudnn
    watch_clocks
    limited 400 "$program" --module "$(module)" "${small[@]}" "$1"
    local rc=$?
    watch_clocks_end
    [ $rc -eq 0 ] || failed "$1" "bench_cuda $1: $(why $rc 400)"
    return $rc
}

# verdict NAME TARGET PREFIX...: each line of those names is a fact; the least of the ratios counts
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
}

part_rows() {
    bench rows || return 0
    verdict rows 0.8 row-
    grep '^other-' "$work/said" | while IFS='|' read -r id ratio text; do fact "$id" "$ratio: $text"; done
}

part_copies() {
    bench copies || return 0
    verdict pull 0.95 pull-
    verdict push 0.95 push-
    grep '^other-' "$work/said" | while IFS='|' read -r id ratio text; do fact "$id" "$ratio: $text"; done
}

# Ours "KIND-DIRECTION-HEAD-TOKENS|MS|..." beside PyTorch's "DIRECTION-HEAD-TOKENS|MS|...": ratios, in $work/said
part_attention() {
    bench attention || return 0
    cp "$work/said" "$work/ours"
    if [ -n "$simulate" ]; then
        sed -n 's/^own-//p' "$work/ours" >"$work/theirs" # so that the rest is tried
    elif ! limited 200 "$python" tools/bench/peer_attention.py; then
        missing attention-peer "tools/bench/peer_attention.py: $(why $? 200)"
        while IFS='|' read -r id ms text; do fact "attention-$id" "$ms ms: $text"; done <"$work/ours"
        return
    else
        cp "$work/said" "$work/theirs"
    fi
    awk -F '|' 'NR == FNR { peer[$1] = $2; way[$1] = $3; next }
        { shape = $1; sub(/^[a-z]*-/, "", shape) }
        shape in peer { printf "attention-%s|%.3f|%s ms, %s; PyTorch %s ms, %s\n", $1, peer[shape] / $2, $2, $3, peer[shape], way[shape] }' \
        "$work/theirs" "$work/ours" >"$work/said"
    verdict attention-cudnn-forward 0.97 attention-cudnn-forward-
    verdict attention-cudnn-backward 0.97 attention-cudnn-backward-
    verdict attention-own-forward 0.5 attention-own-forward-
    verdict attention-own-backward 0.5 attention-own-backward-
}
