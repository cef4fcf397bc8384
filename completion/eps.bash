# Completion of eps, epsd and eps-worker in bash: commands, options, choices, files, daemons that have a directory.
# The lists are those of --help: tests/test_documentation.c compares them.
# shellcheck shell=bash disable=SC2207

_eps_commands="train eval status mem stop"

# The options of a command, one list each; those without a value have no place in _eps_values.
_eps_options() {
    case $1 in
    eps) echo "--help --version" ;;
    train) echo "--model --data --eval-data --out --steps --epochs --batch --seq --microbatch --parts --lr --min-lr" \
        "--schedule --warmup --weight-decay --betas --epsilon --optimizer --order --seed --deterministic --eval-every" \
        "--device --device-mem --workers --connect --help" ;;
    eval) echo "--model --data --batch --seq --device --device-mem --connect --json --help" ;;
    status) echo "--json --help" ;;
    mem) echo "--json --help" ;;
    stop) echo "--help" ;;
    epsd) echo "--listen --private --version --help" ;;
    eps-worker) echo "--connect --device --device-mem --private --version --help" ;;
    esac
}

_eps_daemons() {
    local door
    for door in "${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/eps}" "/tmp/eps-$UID"; do
        [ -n "$door" ] && [ -d "$door" ] && find "$door" -mindepth 2 -maxdepth 2 -name door -printf '%h\n' 2>/dev/null
    done | sed 's|.*/||'
}

_eps_files() {
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$1"))
}

# What may follow an option of a command: in COMPREPLY. Fails if nothing is known to.
_eps_values() {
    case $2 in
    --model | --data | --eval-data) _eps_files "$3" ;;
    --out) compopt -o filenames 2>/dev/null && COMPREPLY=($(compgen -d -- "$3")) ;;
    --schedule) COMPREPLY=($(compgen -W "cosine linear constant" -- "$3")) ;;
    --optimizer) COMPREPLY=($(compgen -W "adama adamw" -- "$3")) ;;
    --order) COMPREPLY=($(compgen -W "shuffled sequential" -- "$3")) ;;
    --microbatch) COMPREPLY=($(compgen -W "auto" -- "$3")) ;;
    --device) [ "$1" = eps-worker ] && COMPREPLY=($(compgen -W "cpu" -- "$3")) ||
        COMPREPLY=($(compgen -W "auto cpu" -- "$3")) ;;
    --connect | --listen) COMPREPLY=($(compgen -W "$(_eps_daemons)" -- "$3")) ;;
    --json | --deterministic | --private | --help | --version) return 1 ;;
    --*) COMPREPLY=() ;;
    *) return 1 ;;
    esac
}

_eps() {
    local command=${COMP_WORDS[0]##*/} word=${COMP_WORDS[COMP_CWORD]} option="" i
    COMPREPLY=()
    if [ "$command" = eps ]; then
        if [ "$COMP_CWORD" -eq 1 ]; then
            COMPREPLY=($(compgen -W "$_eps_commands $(_eps_options eps)" -- "$word"))
            return
        fi
        command=${COMP_WORDS[1]}
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
    *:-*) COMPREPLY=($(compgen -W "$(_eps_options "$command")" -- "$word")) ;;
    status:* | mem:* | stop:*) COMPREPLY=($(compgen -W "$(_eps_daemons)" -- "$word")) ;;
    *) COMPREPLY=($(compgen -W "$(_eps_options "$command")" -- "$word")) ;;
    esac
}

complete -F _eps eps epsd eps-worker
