"""README.md and the pages behind it: their links lead somewhere, the options they name exist, and README is short.

usage: tests/system/check_pages.py BIN      of a build; prints what is wrong, and exits with 1
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 150  # of README.md
# Options of other programs in commands of ours, by the program's name.
FOREIGN = {
    "hf": "--local-dir", "cmake": "--preset --build --target --install --prefix", "pip": "", "apt-get": "", "mpirun": "--hostfile --map-by",
    "python3": "--outfile --base", "pkg-config": "--cflags --libs",
}
# Pages that tell users of options; others have those of scripts and tests, too.
USERS = ["README.md", "client/README.md", "client/python/README.md", "eps/README.md", "proto/README.md",
         "proto/plan/README.md", "device/cuda/README.md", "tools/project/CHANGES.md", "tools/project/SECURITY.md"]
COMMANDS = "train plan data eval generate chat report export verify bench up status mem top save drain stop".split()


def slug(heading):
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def text_of(page):
    """A page without its blocks of code, in which a line may begin as a heading does."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)}


def check_links(page, wrong):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists():
            wrong.append(f"{page.relative_to(ROOT)} links {target}, which is not there")
        elif anchor and anchor not in anchors(to):
            wrong.append(f"{page.relative_to(ROOT)} links {target}: no heading has this anchor")


def options_of(program, *command):
    said = subprocess.run([program, *command, "--help", "all"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  (--[a-z-]+)", said, re.MULTILINE))


def check_options(page, options, wrong):
    """Each option of a command is that command's; each other one is some program's."""
    known = set().union(*options.values(), *(names.split() for names in FOREIGN.values()))
    text = page.read_text()
    for name in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)) - known):
        wrong.append(f"{page.relative_to(ROOT)} names {name}, which no program has")
    for command, rest in re.findall(r"\beps ([a-z]+)((?: +(?:[^\s`|;&#)]|&(?!\s*$))+)*)", text):
        if command not in COMMANDS:
            continue
        for name in re.findall(r"(?:^| )(--[a-z][a-z-]*)", rest.split(" -- ")[0]):
            if name not in options[command] and name not in FOREIGN["hf"]:
                wrong.append(f"{page.relative_to(ROOT)}: eps {command} has no {name}")


def main(bin_folder):
    wrong = []
    pages = [ROOT / page for page in subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True,
                                                    check=True).stdout.split()] if (ROOT / ".git").exists() else sorted(ROOT.rglob("*.md"))
    lines = len((ROOT / "README.md").read_text().splitlines())
    if lines > MOST_LINES:
        wrong.append(f"README.md has {lines} lines, more than {MOST_LINES}")
    options = {command: options_of(f"{bin_folder}/eps", command) for command in COMMANDS}
    options["epsd"], options["eps-worker"] = options_of(f"{bin_folder}/epsd"), options_of(f"{bin_folder}/eps-worker")
    for page in pages:
        check_links(page, wrong)
        if page.relative_to(ROOT).as_posix() in USERS:
            check_options(page, options, wrong)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
