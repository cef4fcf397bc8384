# Completion of eps, epsd and eps-worker in fish: commands, options, choices, files and daemons, as --help lists them.

function __eps_daemons
    for folder in $XDG_RUNTIME_DIR/eps /tmp/eps-(id -u)
        path basename (path dirname $folder/*/listener)
    end 2>/dev/null
end

# The help for the words before the cursor.
function __eps_help
    command -q $argv[1]; or return
    if test (path basename $argv[1]) = eps; and set -q argv[2]
        command $argv[1] $argv[2] --help all 2>/dev/null
    else
        command $argv[1] --help 2>/dev/null
    end
end

# A line for each choice: the word, a tab, what it is.
function __eps_choices
    set -l words (commandline -opc)
    set -l help (__eps_help $words)
    if test (path basename $words[1]) = eps; and not set -q words[2]
        string replace -rf '^  ([a-z]+)  +(.*)' '$1\t$2' -- $help
        return
    end
    set -l option (string match -- '--*' $words)[-1]
    set -l value (string match -rg -- "^  $option (\[?[^ ]+)" $help)
    if not test "$option" = "$words[-1]"; and not string match -q -- '*...' $value
        set value # the option has its value already
    end
    switch "$value"
        case '' # an option, or what needs none
            string match -rq '^  ADDRESS' -- $help; and __eps_daemons
            string match -rq '^  MODEL_TYPE' -- $help; and $words[1] models 2>/dev/null | string replace -r ' .*' '' | tail -n +2
            string match -rq '^  FILE\.\.\.' -- $help; and __fish_complete_path (commandline -ct)
            string match -rq '^  (RUN|DIR)' -- $help; and __fish_complete_directories (commandline -ct) ''
            string replace -rf '^  (--[^ ]+)(?: [^ ]+)?(?: +(.*))?$' '$1\t$2' -- $help
        case '*ADDRESS*'
            __eps_daemons
        case '*PRESET'
            __fish_complete_path (commandline -ct)
            string match -rag '\b((?:text|byte)-[a-z]+|gpt2(?:-[a-z]+)?|wrn-28-2|resnet-[0-9]+)\b' -- (__eps_help $words[1] train)
        case '*|*'
            string match -r '^[a-z0-9]+$' -- (string split '|' -- $value)
        case '*'
            __fish_complete_path (commandline -ct)
    end
end

for program in eps epsd eps-worker
    complete -c $program -f -a '(__eps_choices)'
end
