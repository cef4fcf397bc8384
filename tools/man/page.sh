#!/usr/bin/env bash
# Makes the manual page of a command, eps-COMMAND.1. The name's line, the synopsis, the first paragraph
# and all options are what the program itself has (`eps COMMAND --help mdoc`), so the page has each option that the command
# has. eps-COMMAND.1.in beside this script adds what --help has no room for, in three parts:
#
#   text                 below the first paragraph
#   .\" option --NAME    below that option's text, up to the next such line
#   .\" end              what follows are sections of their own
#
# An option that the command does not have is an error: its text would be lost.
#
# usage: tools/man/page.sh EPS COMMAND PAGE
set -euo pipefail
eps=$1 command=$2 page=$3
source=$(dirname "$0")/eps-$command.1.in

does=$("$eps" --help | sed -nE "s/^  $command +//p")
[ -n "$does" ] || { echo "page.sh: eps --help has no $command" >&2; exit 1; }
mkdir -p "$(dirname "$page")"
"$eps" "$command" --help mdoc | awk -v command="$command" -v does="$does" -v source="$source" '
    BEGIN {
        part = "text"
        while ((getline line <source) > 0) {
            if (line ~ /^\.\\" option --/) { part = substr(line, length(".\\\" option ") + 1); known[part] = 1 }
            else if (line ~ /^\.\\" end$/) part = "end"
            else if (line ~ /^\.\\"/) { print "page.sh: " source ": " line >"/dev/stderr"; failed = 1; exit }
            else of[part] = of[part] line "\n"
        }
    }
    { all[++n] = $0 }
    END {
        if (failed) exit 1
        print ".\\\" Made by tools/man/page.sh of eps " command " --help mdoc and eps-" command ".1.in."
        print ".Dd November 30, 2026"
        print ".Dt EPS-" toupper(command) " 1"
        print ".Os eps"
        print ".Sh NAME\n.Nm eps-" command "\n.Nd " does
        print ".Sh SYNOPSIS\n.Nm eps " command
        for (i = 1; i <= n; i++)
            if (all[i] ~ /^\.It Ar /) print (all[i] ~ /\.\.\.$/ ? ".Ar " : ".Op Ar ") substr(all[i], length(".It Ar ") + 1)
        print ".Op Ar OPTIONS"
        print ".Sh DESCRIPTION"
        option = ""
        for (i = 1; i <= n; i++) {
            if (all[i] == ".Sh OPTIONS" && "text" in of) printf ".Pp\n%s", of["text"]
            if (all[i] ~ /^\.(It|El|Ss)/ && option != "") { # the text of an option ends
                if (option in of) printf ".Pp\n%s", of[option]
                option = ""
            }
            print all[i]
            if (all[i] ~ /^\.It Fl -/) { split(all[i], word, " "); option = "-" word[3]; delete known[option] }
        }
        for (option in known) { print "page.sh: " source ": eps " command " has no " option >"/dev/stderr"; failed = 1 }
        if (failed) exit 1
        if ("end" in of) printf "%s", of["end"]
        print ".Sh EXIT STATUS\n0 for success, 1 for failure, 2 for a wrong command line, 128 + N if signal N ended it: 130 after Ctrl-C."
        print ".Sh SEE ALSO\n.Xr eps 1"
    }' >"$page.new" # in place once it is whole
mv "$page.new" "$page"
