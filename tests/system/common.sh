# shellcheck shell=bash
# Shared by chaos.sh, storm.sh and pauses.sh: a folder and a runtime directory of this test alone, a small training run, and how its
# end is compared with that of one that nobody disturbed. Sourcing it enters the folder, $top, with the model's config.json
# and book.txt. The script sets $bin, $steps, $every (steps between checkpoints) and kinds (options), and defines fail.

top=$(mktemp -d)
export XDG_RUNTIME_DIR=$top/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
trap 'end_all; rm -rf "$top"' EXIT
cd "$top" || exit 1

cat >config.json <<'JSON'
{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_layer": 2, "n_head": 2, "n_embd": 32, "n_inner": null,
 "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "initializer_range": 0.02,
 "tie_word_embeddings": true, "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
JSON
for i in $(seq 400); do
    echo "$i: the quick brown fox number $((i * i % 97)) jumps over the lazy dog."
done >book.txt

# begin KIND OUT [OPTIONS]: a run from its beginning, in place of this shell
begin() {
    # shellcheck disable=SC2086,SC2154 # several options
    exec "$bin/eps" train --model "$top/config.json" --data "$top/book.txt" --steps $steps --batch 8 --seq 32 --seed 7 \
        --save-every $every --deterministic ${kinds[$1]} ${3-} --out "$2"
}

# Everything that belongs to this test runs in this runtime directory.
ours() {
    local process
    for process in /proc/[0-9]*; do
        case $(readlink "$process/exe" 2>/dev/null) in
        "$bin"/*) grep -qz "XDG_RUNTIME_DIR=$XDG_RUNTIME_DIR" "$process/environ" 2>/dev/null && echo "${process#/proc/}" ;;
        esac
    done
}

end_all() {
    local pid
    for pid in $(ours); do
        kill -KILL "$pid" 2>/dev/null
    done
    wait 2>/dev/null
}

# until_true SECONDS COMMAND...: false if it never was
until_true() {
    local tries=$(($1 * 20))
    shift
    while ! "$@" 2>/dev/null; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.05
    done
}

nothing_left() { [ -z "$(ours)" ] && [ -z "$(ls -A "$XDG_RUNTIME_DIR/eps" 2>/dev/null)" ]; }

await_nothing() {
    until_true 60 nothing_left || fail "left after a minute: $(ours) $(ls -A "$XDG_RUNTIME_DIR/eps")"
}

# What a run has written, without what depends on the clock.
losses() {
    sed -E 's/.*"step": ([0-9]+),.*"loss": ([0-9.e+-]+|null),.*/\1 \2/' "$1/metrics.jsonl"
}

# check_bits RUN REFERENCE: both end with the same weights, moments and losses. A few steps of RUN may have none: those that a
# daemon saved while their client was killed
check_bits() {
    local file
    for file in model.safetensors optimizer.safetensors; do
        cmp -s "$1/step-$steps/$file" "$2/step-$steps/$file" || fail "$1: $file differs"
    done
    awk 'NR == FNR { of[$1] = $2; next }
        $2 == "null" { lost++ }
        $2 != "null" { bad += of[$1] != $2 }
        { delete of[$1] }
        END { for (step in of) bad++; exit bad || lost > 8 }' <(losses "$2") <(losses "$1") || fail "$1: metrics.jsonl differs"
}
