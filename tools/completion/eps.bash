# Completion of eps, epsd and eps-worker in bash: commands, options, choices, files and daemons.
# The lists are those of --help: tests/system/test_documentation.sh compares them.
# shellcheck shell=bash disable=SC2207

_eps_commands="train plan eval generate chat report export verify bench up status mem top save drain stop"
_eps_presets="text-small text-medium text-large byte-small byte-medium byte-large gpt2 gpt2-medium gpt2-large gpt2-xl"

# The options of each command; those without a value are absent from _eps_values.
_eps_options() {
    case $1 in
    eps) echo "--help --version" ;;
    train) echo "--model --data --eval-data --task --columns --separator --out --resume --attach --change --save-every --save-minutes --keep --steps --epochs --batch --seq" \
        "--microbatch --parts --lr --min-lr --schedule --warmup --weight-decay --betas --epsilon --optimizer" \
        "--clip-norm --clip-update --freeze --commit --precision --moments --grad-dtype --order --mask-fraction --seed --deterministic" \
        "--eval-every --eval-tokens --patience --trace --device --device-mem --host-mem --require-pinned --workers --connect --wait --restarts --help" ;;
    plan) echo "--model --task --labels --batch --seq --microbatch --parts --optimizer --commit --clip-norm --freeze --precision --moments" \
        "--grad-dtype --device --device-mem --host-mem --workers --minimum --find-depth --find-batch --timeline --json --help" ;;
    bench) echo "--profile --device --help" ;;
    eval) echo "--model --data --columns --separator --batch --seq --stride --eval-tokens --mask-fraction --seed --device --device-mem" \
        "--connect --wait --predictions --json --help" ;;
    generate) echo "--model --prompt --prompt-file --ids --samples --tokens --stop --temperature --top-k --top-p --min-p --repetition-penalty --seed --device" \
        "--device-mem --connect --wait --json --help" ;;
    chat) echo "--model --system --context --tokens --stop --temperature --top-k --top-p --min-p --repetition-penalty --seed --device --device-mem" \
        "--connect --wait --help" ;;
    report) echo "--out --help" ;;
    export) echo "--model --connect --out --dtype --help" ;;
    verify) echo "--json --help" ;;
    up) echo "--workers --device --device-mem --help" ;;
    status) echo "--watch --json --help" ;;
    mem) echo "--watch --json --prometheus --help" ;;
    top) echo "--once --help" ;;
    save | drain | stop) echo "--json --help" ;;
    epsd) echo "--listen --key --plain-bulk --mpi --host-mem --queue --group --share-workers --viewers --make-key --log --log-level --private --version --help" ;;
    eps-worker) echo "--connect --key --plain-bulk --device --device-mem --share --profile --log-level --private --version --help" ;;
    esac
}

_eps_daemons() {
    local folder
    for folder in "${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/eps}" "/tmp/eps-$UID"; do
        [ -n "$folder" ] && [ -d "$folder" ] &&
            find "$folder" -mindepth 2 -maxdepth 2 -name listener -printf '%h\n' 2>/dev/null
    done | sed 's|.*/||'
}

_eps_files() { # KIND WORD: -f files, -d directories
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen "$1" -- "$2"))
}

_eps_words() { # WORDS WORD
    COMPREPLY=($(compgen -W "$1" -- "$2"))
}

# Completes the value of a command's option into COMPREPLY. Fails if it is unknown.
_eps_values() {
    case $2 in
    --model)
        _eps_files -f "$3"
        [[ $1 != train && $1 != plan ]] || COMPREPLY+=($(compgen -W "$_eps_presets" -- "$3"))
        ;;
    --data | --eval-data | --prompt-file | --predictions | --trace | --prometheus | --profile | --log | --key | --make-key) _eps_files -f "$3" ;;
    --out | --resume)
        if [ "$1" = report ]; then _eps_files -f "$3"; else _eps_files -d "$3"; fi
        ;;
    --change) _eps_words "batch lr min-lr schedule warmup weight-decay clip-norm clip-update" "$3" ;;
    --schedule) _eps_words "cosine linear constant" "$3" ;;
    --optimizer) _eps_words "adama adamw" "$3" ;;
    --commit) _eps_words "eager fenced" "$3" ;;
    --dtype) _eps_words "fp32 fp16 bf16" "$3" ;;
    --precision | --moments | --grad-dtype) _eps_words "fp32 bf16" "$3" ;;
    --separator) _eps_words "none eos" "$3" ;;
    --task) _eps_words "classify regress" "$3" ;;
    --order) _eps_words "shuffled sequential" "$3" ;;
    --log-level) _eps_words "error warning info" "$3" ;;
    --microbatch) _eps_words auto "$3" ;;
    --device) _eps_words "auto cpu cuda" "$3" ;;
    --connect | --listen | --attach) _eps_words "$(_eps_daemons)" "$3" ;;
    --group | --viewers) COMPREPLY=($(compgen -g -- "$3")) ;;
    --watch | --once | --json | --minimum | --find-depth | --find-batch | --timeline | --deterministic | --require-pinned | --private | --plain-bulk | --share-workers | --mpi | --help | --version) return 1 ;;
    --*) COMPREPLY=() ;;
    *) return 1 ;;
    esac
}

_eps() {
    local command=${COMP_WORDS[0]##*/} word=${COMP_WORDS[COMP_CWORD]} option="" i
    COMPREPLY=()
    if [ "$command" = eps ]; then
        if [ "$COMP_CWORD" -eq 1 ]; then
            COMPREPLY=($(compgen -W "$_eps_commands help version $(_eps_options eps)" -- "$word"))
            return
        fi
        command=${COMP_WORDS[1]}
        if [ "$command" = help ]; then
            _eps_words "$_eps_commands" "$word"
            return
        fi
    fi
    # The option whose value this is: the word before it, or before the '=' where readline splits at it; --data takes
    # several.
    i=$((COMP_CWORD - 1))
    [ "$word" = = ] && word=
    [ "${COMP_WORDS[i]}" = = ] && i=$((i - 1))
    option=${COMP_WORDS[i]}
    while [ "$i" -gt 1 ] && [[ ${COMP_WORDS[i]} != -* ]]; do
        i=$((i - 1))
        [ "${COMP_WORDS[i]}" = --data ] && option=--data
    done
    if [[ $word != -* ]] && _eps_values "$command" "$option" "$word"; then
        return
    fi
    case $command:$word in
    verify:-* | report:-*) _eps_words "$(_eps_options "$command")" "$word" ;;
    verify:* | report:*) _eps_files -d "$word" ;;
    status:-* | mem:-* | top:-* | save:-* | drain:-* | stop:-*) _eps_words "$(_eps_options "$command")" "$word" ;;
    drain:*) # of a worker, whose number comes first
        [[ " ${COMP_WORDS[*]:2:COMP_CWORD-2}" != *\ [0-9]* ]] || _eps_words "$(_eps_daemons)" "$word"
        ;;
    status:* | mem:* | top:* | save:* | stop:*) _eps_words "$(_eps_daemons)" "$word" ;;
    *) _eps_words "$(_eps_options "$command")" "$word" ;;
    esac
}

complete -F _eps eps epsd eps-worker
