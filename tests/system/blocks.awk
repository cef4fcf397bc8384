# The blocks of commands of Markdown pages, in their order: indented lines, and fences without a language. One line for each
# command, however many it has, and an empty one where a block ends. A block behind a comment "<!-- not run: WHY -->" is left
# out; with `left_out` set, those alone are printed.
#
# usage: awk -f tests/system/blocks.awk [-v left_out=1] PAGE...

function wanted() { return (skipped ? 1 : 0) == (left_out ? 1 : 0) }
function put(line) {
    goes_on = sub(/ *\\$/, "", line)
    if (wanted())
        printf "%s%s", line, goes_on ? " " : "\n"
    open = 1
}
function end() {
    if (open && wanted())
        print ""
    if (open)
        skipped = 0
    open = 0
}

FNR == 1 { end(); skipped = fenced = 0; blank = 1 }
/^<!-- not run: / { end(); skipped = blank = 1; next }
/^```/ {
    if (!fenced) {
        end()
        fenced = 1
        tagged = $0 != "```"
    } else {
        end()
        fenced = 0
        if (tagged)
            skipped = 0
    }
    next
}
fenced { if (!tagged) put($0); next }
/^    / && (blank || open) { put(substr($0, 5)); next }
{ blank = /^$/ }
open { end() }
END { end() }
