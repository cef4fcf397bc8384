# Completion of eps, epsd and eps-worker in bash: commands, options, choices, files and daemons, as --help lists them.
# shellcheck shell=bash disable=SC2207

# The help of the program, or of its command with all options.
_eps_help() { # [COMMAND]
    "${COMP_WORDS[0]/#\~/$HOME}" "$@" --help all 2>/dev/null
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

# Completes a value, by what the help puts in its place, into COMPREPLY.
_eps_value() { # PLACE WORD HELP
    case $1 in
    *ADDRESS*) _eps_words "$(_eps_daemons)" "$2" ;;
    *PRESET) # the help of eps train lists them
        _eps_files -f "$2"
        COMPREPLY+=($(compgen -W "$(_eps_help train | grep -oE '\b((text|byte)-[a-z]+|gpt2(-[a-z]+)?|wrn-28-2|resnet-[0-9]+)\b' | sort -u)" -- "$2"))
        ;;
    *FILE*) _eps_files -f "$2" ;;
    DIR) _eps_files -d "$2" ;;
    NAME,...) # "NAME is one, two or three."
        _eps_words "$(tr -s ' \n' ' ' <<<"$3" | sed -nE 's/.*NAME is ([^.]*)\..*/\1/p' | sed 's/,/ /g; s/ or / /')" "$2"
        ;;
    G) COMPREPLY=($(compgen -g -- "$2")) ;;
    *"|"*) _eps_words "$(tr '|' '\n' <<<"$1" | sed -nE 's/^([a-z0-9]+)(\[.*)?$/\1/p')" "$2" ;;
    esac
}

_eps() {
    local word=${COMP_WORDS[COMP_CWORD]} command="" option="" help place i
    COMPREPLY=()
    if [ "${COMP_WORDS[0]##*/}" = eps ]; then
        command=${COMP_WORDS[1]}
        if [ "$COMP_CWORD" -eq 1 ] || [ "$command" = help ]; then
            help=$(_eps_help | sed -nE 's/^  ([a-z]+) .*/\1/p')
            [ "$COMP_CWORD" -gt 1 ] || help+=" help version --help --version"
            _eps_words "$help" "$word"
            return
        fi
    fi
    help=$(_eps_help ${command:+"$command"})
    # The option whose value this is: the word before it, or before the '=' where readline splits at it; or the one before
    # several values.
    i=$((COMP_CWORD - 1))
    [ "$word" = = ] && word=
    [ "${COMP_WORDS[i]}" = = ] && i=$((i - 1))
    option=${COMP_WORDS[i]}
    while [ "$i" -gt 1 ] && [[ ${COMP_WORDS[i]} != --* ]]; do
        i=$((i - 1))
    done
    place=$(grep -oE -- "^  ${COMP_WORDS[i]} [^ ]+" <<<"$help" | sed 's/.* //')
    if [[ $word != -* && -n $place && ($option = "${COMP_WORDS[i]}" || $place = *...) ]]; then
        _eps_value "$place" "$word" "$help"
        [[ ${#COMPREPLY[@]} -eq 0 && $place = \[* ]] || return # a value that may be left out
    fi
    case $word:$help in
    -*) ;;
    *$'\n  WORKER '*) # its number comes first
        [[ " ${COMP_WORDS[*]:2:COMP_CWORD-2}" != *\ [0-9]* ]] || _eps_words "$(_eps_daemons)" "$word"
        return
        ;;
    *$'\n  ADDRESS '*)
        _eps_words "$(_eps_daemons)" "$word"
        return
        ;;
    *$'\n  MODEL_TYPE '*)
        _eps_words "$("${COMP_WORDS[0]/#\~/$HOME}" models 2>/dev/null | sed '1d; s/ .*//')" "$word"
        return
        ;;
    *$'\n  FILE... '*)
        _eps_files -f "$word"
        return
        ;;
    *$'\n  RUN '* | *$'\n  DIR '*)
        _eps_files -d "$word"
        return
        ;;
    esac
    _eps_words "$(sed -nE 's/^  (--[^ ]+).*/\1/p' <<<"$help")" "$word"
}

complete -F _eps eps epsd eps-worker
