# shellcheck shell=bash
# Shared by the scripts of this folder; each sources it from the repository's root.

script=${0##*/}
arm='' # what the names of a tuning's files begin with
device=cpu memory='' jobs=1 # --device NAME, --memory BYTES of it for each run, --jobs N: runs at once
finished=tools/bench/results/${script%.sh}.jsonl # lines of finished seeds, below
export LC_ALL=C # printf %c is a byte

# misuse SENTENCE
misuse() {
    echo "$script: $1" >&2
    exit 2
}

# take_options NAMES OPTION...: "--NAME VALUE" sets the variable of that name, which already holds its default. NAMES are
# separated by blanks or lines. --help prints the script's first comment.
take_options() {
    local names=" ${1//$'\n'/ } "
    shift
    while [ $# -gt 0 ]; do
        case "$1" in
        --help | -h) awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "tools/bench/$script"; exit ;;
        --*[!a-z]* | [!-]* | -[!-]* | --) misuse "unknown option $1 (see --help)" ;;
        *) [[ $names == *" ${1#--} "* ]] || misuse "unknown option $1 (see --help)" ;;
        esac
        [ $# -ge 2 ] || misuse "$1 needs a value"
        declare -g "${1#--}=$2"
        shift 2
    done
}

# need_programs BIN
need_programs() {
    [ -x "$1/eps" ] || { echo "$script: no $1/eps: build the release preset first" >&2; exit 1; }
}

# need_python PYTHON MODULE...
need_python() {
    local modules="${*:2}"
    "$1" -c "import ${modules// /, }" 2>/dev/null ||
        { echo "$script: $1 lacks one of: $modules (Debian has python3-torch)" >&2; exit 1; }
}

# on_device COMMAND OPTION...: eps on $device
on_device() {
    [ -z "$memory" ] || [[ " $* " == *' --device-mem '* ]] || set -- "$@" --device-mem "$memory"
    "$bin/eps" "$@" --device "$device"
}

# train_once OUT OPTION...: a run in OUT by $bin, unless it is done; what was begun goes on. In fp32 on any device, unless an
# option says otherwise
train_once() {
    local out=$1
    shift
    [ ! -e "$out.done" ] || return 0
    if [ -e "$out/latest" ]; then
        [[ " $* " =~ ' --device-mem '([^ ]+) ]] && set -- --device-mem "${BASH_REMATCH[1]}" || set --
        on_device train --resume "$out" "$@" >>"$out.log" 2>&1
    else
        rm -rf "$out"
        [[ " $* " =~ ' --'(precision|resume)' ' ]] || set -- "$@" --precision fp32
        on_device train "$@" --out "$out" >"$out.log" 2>&1
    fi || tail -n 1 "$out.log" | grep -q ': the run is complete: ' || { tail -n 3 "$out.log" >&2; exit 1; }
    touch "$out.done"
}

# evaluate OUT OPTION...: the run's last checkpoint, as JSON in OUT.score, unless it is there
evaluate() {
    [ ! -e "$1.score" ] || return 0
    on_device eval --model "$1/latest" "${@:2}" --json >"$1.part"
    mv "$1.part" "$1.score"
}

# at_once COMMAND...: $jobs of them run at once; finish waits for the last ones. Ctrl-C reaches what runs alone.
at_once() {
    [ "$jobs" -gt 1 ] || { "$@"; return; }
    [ "$(jobs -rp | wc -l)" -lt "$jobs" ] || wait -n || [ $? -eq 127 ]
    "$@" &
    begun+=($!)
}
begun=()
finish() {
    local pid
    for pid in "${begun[@]}"; do wait "$pid"; done
    begun=()
}

# difference A B: of the lines on standard input, one for each seed, column A less column B, by tools/bench/paired.awk
difference() { awk -v a="$1" -v b="$2" -f tools/bench/paired.awk; }

# compare_form FORM: the "accuracy loss" of its tunings, by seed, with those of the exact ones, on a longer schedule as F:long;
# of files that begin with $arm
compare_form() {
    local exact=exact pairs
    [[ $1 != *:long ]] || exact=exact:long
    pairs=$(paste -d ' ' "$keep/$arm$1.scores" "$keep/$arm$exact.scores")
    awk -v form="$arm$1" '
        { shown = shown sprintf(" %.4f", $1); accuracy += $1; loss += $2 }
        END { printf "%-22s accuracy%s, mean %.4f, loss %.4f", form, shown, accuracy / NR, loss / NR }' <<<"$pairs"
    [[ $1 == *exact* ]] ||
        printf '; less exact: accuracy %s; loss %s' "$(difference 1 3 <<<"$pairs")" "$(difference 2 4 <<<"$pairs")"
    echo
}

# ---- finished seeds ----
# Of each run that a comparison has finished the tree keeps a line (tools/bench/results/README.md). So a comparison goes on where
# another machine was given up; but all arms of one seed are of one machine.

figures='accuracy loss' # names of what `score` prints

machine() {
    awk -F '[ \t]*: ' '/^model name/ { name = $2 } /^cpu family/ { family = $2 } /^model\t/ { model = $2 }
        END { printf "%s, family %s model %s", name, family, model }' /proc/cpuinfo | tr -d '"\\'
}

# lines_of ARM SEED [MACHINE]: those of this $setting
lines_of() {
    [ -e "$finished" ] || return 0
    grep -F "{\"setting\": \"$setting\", \"arm\": \"$1\", \"seed\": $2, " "$finished" | grep -F "\"machine\": \"${3+$3\"}" || true
}

# text_of KEY: of lines on standard input
text_of() { sed "s/.*\"$1\": \"\([^\"]*\)\".*/\1/"; }

# known ARM SEED MACHINE: its figures, in their order; false if there is no line
known() {
    local line name said=()
    line=$(lines_of "$@" | tail -n 1)
    [ -n "$line" ] || return 1
    for name in $figures; do said+=("$(field "$name" <<<"$line")"); done
    echo "${said[*]}"
}

# machine_of SEED ARM...: where all of these were finished; else this one
machine_of() {
    local seed=$1 there name all
    shift
    while read -r there; do
        all=true
        for name in "$@"; do known "$name" "$seed" "$there" >/dev/null || all=false; done
        ! $all || { echo "$there"; return; }
    done < <(lines_of "$1" "$seed" | text_of machine)
    machine
}

# measure ARM SEED: by `score`, which prints its figures; adds the line
measure() {
    local values name line
    read -ra values <<<"$(score "${1#"$arm"}" "$2")"
    line="{\"setting\": \"$setting\", \"arm\": \"$1\", \"seed\": $2, \"machine\": \"$(machine)\", "
    line+="\"commit\": \"$(git describe --always --dirty 2>/dev/null || echo unknown)\", \"date\": \"$(date +%F)\""
    for name in $figures; do
        [[ ${values[0]-} == [-0-9]* ]] || { echo "$script: $1, seed $2: no $name" >&2; exit 1; }
        line+=", \"$name\": ${values[0]}"
        values=("${values[@]:1}")
    done
    mkdir -p "${finished%/*}"
    echo "$line}" >>"$finished"
}

# prepare: what all runs need and take long to make; a script may have one of its own
prepare() { :; }

# measure_all ARM...: those of $seeds seeds that have no line yet, seed by seed
measure_all() {
    local seed name there prepared=false
    for ((seed = 1; seed <= seeds; seed++)); do
        there=$(machine_of "$seed" "$@")
        for name in "$@"; do
            ! known "$name" "$seed" "$there" >/dev/null || continue
            $prepared || prepare
            prepared=true
            at_once measure "$name" "$seed"
        done
    done
    finish
}

# figures_of ARM OF...: its figures, a line for each seed, of the machine where all arms OF stand
figures_of() {
    local seed
    for ((seed = 1; seed <= seeds; seed++)); do known "$1" "$seed" "$(machine_of "$seed" "${@:2}")"; done
}

# compare_forms: tunings that are exact, and in each of $forms, from each of $seeds seeds; `score FORM SEED` does one, and
# prints its "accuracy loss"
compare_forms() {
    local form arms=("${arm}exact")
    for form in $forms; do arms+=("$arm$form"); done
    measure_all "${arms[@]}"
    for form in exact $forms; do
        figures_of "$arm$form" "${arms[@]}" >"$keep/$arm$form.scores"
        compare_form "$form"
    done
}

# unpack_images: those of $data into $keep: Fashion-MNIST, or a tenth of CIFAR-10. Sets $train_data and $test_data, $images,
# which tells of them, and $image_keys of a net's configuration.
unpack_images() {
    local part
    [ -e "$data/train-images-idx3-ubyte.gz" ] || [ -e "$data/train-5085.bin.xz" ] ||
        misuse "no images in $data: install dataset-fashion-mnist, or give their directory by --data"
    mkdir -p "$keep"
    if [ -e "$data/train-images-idx3-ubyte.gz" ]; then
        train_data=$keep/train-images-idx3-ubyte test_data=$keep/t10k-images-idx3-ubyte images=Fashion-MNIST
        image_keys='"num_channels": 1, "image_size": 28, "image_mean": [0.286], "image_std": [0.353]'
        for part in {train,t10k}-{images-idx3,labels-idx1}-ubyte; do
            [ -e "$keep/$part" ] || zcat "$data/$part.gz" >"$keep/$part"
        done
    else
        train_data=$keep/train.bin test_data=$keep/test.bin images='a tenth of CIFAR-10'
        image_keys='"image_size": 32, "image_mean": [0.491, 0.482, 0.447], "image_std": [0.247, 0.243, 0.262]'
        [ -e "$train_data" ] || xz -dc "$data/train-5085.bin.xz" >"$train_data"
        [ -e "$test_data" ] || xz -dc "$data/test-1017.bin.xz" >"$test_data"
    fi
}

image_batch=64 # rows of a step

# score_images OUT NET EPOCHS SEED OPTION...: trains NET on these images in OUT; "accuracy loss" on the test images
score_images() {
    local out=$1
    train_once "$out" --keep 1 --model "$2" --data "$train_data" --eval-data "$test_data" --epochs "$3" --batch $image_batch \
        --optimizer sgd --momentum 0.9 --weight-decay 5e-4 --lr 0.1 --augment crop=4,flip --seed "$4" "${@:5}"
    evaluate "$out" --data "$test_data"
    echo "$(field accuracy <"$out.score" | head -n 1) $(field loss <"$out.score")"
}

# need_sst2: SST-2, and the text beside it, in $data
need_sst2() {
    local file
    for file in sst2/train.tsv.gz sst2/dev.tsv.gz multi30k/train.en.gz; do
        [ -r "$data/$file" ] || misuse "no ${data:-DIR}/$file: give the directory of SST-2 and Multi30k by --data"
    done
}

# make_work [OPTION OF mktemp...]: an empty directory $work, until the script ends
# shellcheck disable=SC2120
make_work() {
    work=$(mktemp -d "$@")
    trap 'rm -rf "$work"' EXIT
}

# write_images N SIDE: images.npy and labels.npy in $work, of N images in colour by a formula, and of 10 classes
write_images() {
    local python=/usr/bin/python3
    need_python "$python" sys
    "$python" - "$work" "$1" "$2" <<'PYTHON'
import sys
folder, n, side = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def put(name, shape, data):
    head = "{'descr': '|u1', 'fortran_order': False, 'shape': %s, }" % (shape,)
    with open(f"{folder}/{name}.npy", "wb") as f:
        f.write(b"\x93NUMPY\1\0" + (118).to_bytes(2, "little") + head.ljust(117).encode() + b"\n" + data)
put("images", (n, side, side, 3), bytes(i * 7919 % 251 for i in range(n * 3 * side * side)))
put("labels", (n,), bytes(i % 10 for i in range(n)))
PYTHON
}

# print_config VOCABULARY: prints config.json of a GPT-2 without dropout, from $width, $layers, $heads and $seq
print_config() {
    cat <<JSON
{"model_type": "gpt2", "n_embd": $width, "n_layer": $layers, "n_head": $heads, "vocab_size": $1,
 "n_positions": $seq, "activation_function": "gelu_new", "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
JSON
}

# stashless OPTION...: host memory without activation checkpoints and replay, by $bin: with room for everything, they are on the
# device
stashless() {
    "$bin/eps" plan --json --device-mem 1TiB "$@" | grep -o '"[a-z_]*": {"current": [0-9]*' | tr -d '":{' |
        awk '$1 == "host" { bytes = $3 } $1 == "replay" { bytes -= $3 } END { printf "%.0f\n", bytes }'
}

# print_dynamic_conv_config VOCABULARY: the same of an encoder-decoder with dynamic convolutions and dropout, from $width,
# $layers, $heads, $inner and $kernels
print_dynamic_conv_config() {
    cat <<JSON
{"model_type": "dynamic_conv", "d_model": $width, "num_heads": $heads, "ffn_dim": $inner, "encoder_layers": $layers,
 "decoder_layers": $layers, "encoder_kernel_sizes": [$kernels], "decoder_kernel_sizes": [$kernels],
 "vocab_size": $1, "decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "dropout": 0.3,
 "attention_dropout": 0.1, "weight_dropout": 0.1}
JSON
}

# The same of a Qwen 2.5, also from $kv and $inner
print_qwen2_config() {
    cat <<JSON
{"model_type": "qwen2", "hidden_size": $width, "num_hidden_layers": $layers, "num_attention_heads": $heads,
 "num_key_value_heads": $kv, "intermediate_size": $inner, "vocab_size": $1, "max_position_embeddings": $seq,
 "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": false}
JSON
}

# The same of a Qwen 3, also from $kv, $inner and $headwidth
print_qwen3_config() {
    cat <<JSON
{"model_type": "qwen3", "hidden_size": $width, "num_hidden_layers": $layers, "num_attention_heads": $heads,
 "num_key_value_heads": $kv, "head_dim": $headwidth, "intermediate_size": $inner, "vocab_size": $1,
 "max_position_embeddings": $seq, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": ${tied:-true}}
JSON
}

# write_text BYTES: the same text every time, in $work/data.txt, and one window of $seq for the held-out loss, held_out.txt
write_text() {
    head -c "$1" < <(yes 'some text to train on' | tr '\n' ' ') >"$work/data.txt"
    head -c $((seq + 1)) "$work/data.txt" >"$work/held_out.txt"
}

# random_tokens N [LEAST]: prints random tokens from LEAST to $vocabulary - 1, u16, the same every time
random_tokens() {
    awk -v n="$1" -v v="$vocabulary" -v least="${2-0}" 'BEGIN {
        srand(1)
        for (i = 0; i < n; i++) { t = least + int(rand() * (v - least)); printf "%c%c", t % 256, int(t / 256) } }'
}

# write_tokens N: such tokens in $work/data.bin, and held_out.bin
write_tokens() {
    random_tokens "$1" >"$work/data.bin"
    head -c $((2 * (seq + 1))) "$work/data.bin" >"$work/held_out.bin"
}

# run_training OPTION...: a run in $work/run, which is replaced; its output is shown only if it fails
run_training() {
    rm -rf "$work/run"
    "$bin/eps" train "$@" --out "$work/run" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
}

# Milliseconds of each step of that run but the first two, one per line.
step_times() { field step_ms <"$work/run/metrics.jsonl" | tail -n +3; }

# Median of the numbers on standard input, one per line.
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

# field NAME: of JSON on standard input
field() { sed -n "s/.*\"$1\": \"\{0,1\}\([^\",}]*\).*/\1/p"; }
mib() { awk -v b="$1" 'BEGIN { printf "%.0f MiB", b / 1048576 }'; }

# planned NAME: bytes of a side, or of the first category of this name, in eps plan --json on standard input
planned() { grep -o "\"$1\": {\"current\": [0-9]*" | head -n 1 | grep -o '[0-9]*$'; }

# kept BUDGET: blocks that keep their activations with this budget; model, batch and precision are in $options
kept() {
    "$bin/eps" plan "${options[@]}" --device-mem "$1" --json | field kept
}

# The memory that the planner takes if it may use any.
held_with_any_memory() {
    "$bin/eps" plan "${options[@]}" --device-mem 1TiB --json | sed -n 's/.*"workers": \[{"current": \([0-9]*\).*/\1/p'
}

# The largest budget, to a MiB, in which every block recomputes.
recomputing_budget() {
    local low high middle
    low=$("$bin/eps" plan "${options[@]}" --minimum) high=$((low + (1 << 36)))
    while [ $((high - low)) -gt 1048576 ]; do
        middle=$(((low + high) / 2))
        if [ "$(kept $middle)" -eq 0 ]; then low=$middle; else high=$middle; fi
    done
    echo "$low"
}
