#!/usr/bin/env python3
"""mutation.py - plants faults in the sources, one at a time, and notes which test finds each.

  draw SEED N       prints a list of N faults, the same ones for the same seed and sources: a comparison or an
                    arithmetic operator changed, a bound off by one, two statements swapped, a check or a call left
                    out, a constant changed. Each compiles, and to other code than the source does.
  run FAULTS RESULTS --tree DIR [--then REGEX] [--only ID,...] [--limit SECONDS] [-j N]
                    plants each in DIR, a worktree with a build of its own that is made where there is none, builds,
                    and runs tests until one fails: the source's namesakes in the folder of tests/ that mirrors its own,
                    the rest of that folder, and the programs that REGEX names (all, unless told otherwise). Before the
                    first fault all of them run without one: who fails then finds nothing. Appends a line to RESULTS for
                    each fault; one that has a line already is passed over, so a run that was ended goes on.
  check FAULTS      which can no longer be planted: the exit status is 1 if there is one.
  compare BEFORE AFTER
                    what BEFORE found and AFTER did not; the exit status is 1 if there is anything.

A fault names its file, its line and the text there. Where the file has changed since, the nearest line of the same text is
taken; where the line has moved to another file, that one. A fault without one is `gone`, which compare reports apart.
"""
import argparse
import ctypes
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = subprocess.run(['git', 'rev-parse', '--show-toplevel'], stdout=subprocess.PIPE, text=True,
                      cwd=os.path.dirname(os.path.abspath(__file__)), check=True).stdout.strip()
FOLDERS = ['proto', 'eps', 'device', 'client', 'tools']
LEFT_OUT = ('tools/bench/', 'tools/gpu/')  # which no test runs to their end
MOST_PER_FILE = 2

# What takes the place of what, by kind. A line may have several; all operators have blanks around them, as clang-format
# leaves them.
REPLACED = {
    'comparison': [(r' == ', ' != '), (r' != ', ' == '), (r' < ', ' >= '), (r' > ', ' <= '), (r' <= ', ' > '),
                   (r' >= ', ' < '), (r' && ', ' || '), (r' \|\| ', ' && '), (r'\(!(?=\w)', '(')],
    'arithmetic': [(r' \+ ', ' - '), (r' - ', ' + '), (r' \* ', ' / '), (r' / ', ' * '), (r' % ', ' / '),
                   (r' << ', ' >> '), (r' >> ', ' << '), (r' & ', ' | '), (r' \| ', ' & '), (r' \+= ', ' -= ')],
    'bound': [(r' < ', ' <= '), (r' <= ', ' < '), (r' > ', ' >= '), (r' >= ', ' > '), (r' - 1(?![\w.])', ''),
              (r' \+ 1(?![\w.])', '')],
    'constant': [(r'(?<![\w.])0(?![\w.])', '1'), (r'(?<![\w.])1(?![\w.])', '2'),
                 (r'(?<![\w.])([2-9]|[1-9]\d+)(?![\w.])', lambda number: str(int(number[0]) + 1)), (r'\btrue\b', 'false'), (r'\bfalse\b', 'true'),
                 (r'(?<![\w.])\d+\.\d+(?![\w.])', lambda number: str(2 * float(number[0]) or 1))],
}
STATEMENT = re.compile(r'^ +(?!return|break|continue|goto|case|default|else)[a-z_]\w*[\w.\[\]>-]*'
                       r'(\(|\+\+|--| [-+|*&]?= ).*;$')
CHECK = re.compile(r'^ +if \(.*\)$')
WAY_OUT = re.compile(r'^ +(return\b.*|goto \w+|continue|break);$')


def masked(text):
    """The text with blanks in the place of comments, strings, character constants and lines of the preprocessor."""
    def blank(match):
        return re.sub(r'[^\n]', ' ', match[0])
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|^#(?:\\\n|[^\n])*', blank, text,
                  flags=re.S | re.M)


def candidates(path):
    """(kind, line, old, new) of each fault that this file might have; lines from 1."""
    with open(os.path.join(ROOT, path)) as f:
        text = f.read()
    lines, code = text.split('\n'), masked(text).split('\n')
    for i, line in enumerate(lines):
        for kind, replaced in REPLACED.items():
            for old, new in replaced:
                for match in re.finditer(old, code[i]):
                    if not code[i].startswith((' ', '#')):
                        continue  # outside functions
                    put = new(match) if callable(new) else new
                    changed = line[:match.start()] + put + line[match.end():]
                    yield kind, i + 1, line, changed
        if i + 1 == len(lines):
            break
        two, following = '\n'.join(lines[i:i + 2]), code[i + 1]
        indent = len(line) - len(line.lstrip())
        if STATEMENT.match(code[i]):
            if '(' in code[i] and ' = ' not in code[i] and not code[i].lstrip().startswith('free('):
                yield 'omission', i + 1, line, ' ' * indent + ';'
            if STATEMENT.match(following) and len(following) - len(following.lstrip()) == indent:
                yield 'order', i + 1, two, '\n'.join([lines[i + 1], line])
        if CHECK.match(code[i]) and WAY_OUT.match(following):
            yield 'omission', i + 1, two, ' ' * indent + ';\n'


class Compiler:
    """Says whether a changed source compiles to other code. The commands are those of build/."""

    def __init__(self):
        self.commands, self.plain = {}, {}
        for entry in json.load(open(os.path.join(ROOT, 'build', 'compile_commands.json'))):
            path = os.path.relpath(os.path.realpath(entry['file']), ROOT)
            self.commands.setdefault(path, (entry['command'].split(' -o ')[0].replace('\\"', '"'), entry['directory']))

    def code(self, path, text):
        command, directory = self.commands[path]
        words = [w for w in command.split() if w not in ('ccache', '-g', '-c') and not w.startswith('-O')]
        language = 'c' if path.endswith('.c') else 'c++'
        done = subprocess.run(words + ['-O1', '-S', '-o', '-', '-x', language, '-'], cwd=directory, text=True,
                              input=f'# 1 "{path}"\n{text}', stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return done.stdout if done.returncode == 0 else None

    def tells(self, path, changed):
        if path not in self.commands:
            return False
        if path not in self.plain:
            with open(os.path.join(ROOT, path)) as f:
                self.plain[path] = self.code(path, f.read())
        code = self.code(path, changed)
        return None not in (code, self.plain[path]) and code != self.plain[path]


def planted(text, fault):
    """The text with the fault in it; None if its line is nowhere."""
    old, lines = fault['old'].split('\n'), text.split('\n')
    found = [i for i in range(len(lines)) if lines[i:i + len(old)] == old]
    if not found:
        return None
    at = min(found, key=lambda i: abs(i + 1 - fault['line']))
    return '\n'.join(lines[:at] + fault['new'].split('\n') + lines[at + len(old):])


def draw(seed, n):
    names = subprocess.run(['git', 'ls-files', *FOLDERS], stdout=subprocess.PIPE, text=True, cwd=ROOT,
                           check=True).stdout.split()
    by_kind = {}
    for path in sorted(names):
        if path.endswith(('.c', '.cu')) and not path.startswith(LEFT_OUT):
            for kind, line, old, new in candidates(path):
                by_kind.setdefault(kind, []).append((path, line, old, new))
    rng, compiler, faults, in_file = random.Random(seed), Compiler(), [], {}
    kinds = sorted(by_kind)
    while len(faults) < n and any(by_kind.values()):
        kind = kinds[len(faults) % len(kinds)]
        path, line, old, new = by_kind[kind].pop(rng.randrange(len(by_kind[kind])))
        fault = {'id': len(faults) + 1, 'kind': kind, 'file': path, 'line': line, 'old': old, 'new': new}
        with open(os.path.join(ROOT, path)) as f:
            text = f.read()
        if in_file.get(path, 0) < MOST_PER_FILE and compiler.tells(path, planted(text, fault)):
            in_file[path] = in_file.get(path, 0) + 1
            faults.append(fault)
    return faults


def processes():
    """{process: its parent}"""
    found = {}
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{name}/stat') as f:
                found[int(name)] = int(f.read().rpartition(')')[2].split()[1])
        except OSError:
            pass  # it has ended
    return found


def kill_all():
    """Kills all that this process started, and all that they did: tests, and the daemons of tests, have groups and sessions
    of their own, and fall to this process when their parents end."""
    while True:
        ours, of = {os.getpid()}, processes()
        while more := {pid for pid, parent in of.items() if parent in ours} - ours:
            ours |= more
        ours.remove(os.getpid())
        if not ours:
            return
        for pid in ours:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def adopt():
    """Orphans become this process's children, and whoever ends it ends them: a signal is an exit, not a death."""
    pr_set_child_subreaper = 36
    assert ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0) == 0
    signals = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

    def leave(number, _):
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in signals:
        signal.signal(number, leave)


def limited(words, directory, limit_s):
    """(exit status, output); the status is None if it takes longer. Nothing that was started is left in any case."""
    with tempfile.TemporaryFile('w+') as out:
        child = subprocess.Popen(words, cwd=directory, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            kill_all()
        out.seek(0)
        return status, out.read()


def find_source(directory, fault):
    """The fault's file in a worktree, or where its line has moved to if there is one such place; else None."""
    names = subprocess.run(['git', 'ls-files', *FOLDERS], stdout=subprocess.PIPE, text=True, cwd=directory,
                           check=True).stdout.split()

    def has(name):
        with open(os.path.join(directory, name)) as f:
            return planted(f.read(), fault) is not None

    if fault['file'] in names and has(fault['file']):
        return fault['file']
    found = [name for name in names if name.endswith(('.c', '.cu', '.h', '.cuh')) and has(name)]
    same = [name for name in found if os.path.basename(name) == os.path.basename(fault['file'])]
    return same[0] if len(same) == 1 else found[0] if len(found) == 1 else None


class Tree:
    """A worktree that faults are planted in, and its build."""

    def __init__(self, directory, jobs, limit_s):
        self.directory, self.build, self.jobs, self.limit_s = directory, os.path.join(directory, 'build'), jobs, limit_s
        if not os.path.exists(directory):
            subprocess.run(['git', 'worktree', 'add', '--detach', directory, 'HEAD'], cwd=ROOT, check=True)
        if not os.path.exists(self.build):
            subprocess.run(['cmake', '--preset', 'release'], cwd=directory, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(['git', 'checkout', '-q', '--', *FOLDERS], cwd=directory, check=True)  # of a run that was killed
        rules = subprocess.run(['ninja', '-C', self.build, '-t', 'targets', 'all'], stdout=subprocess.PIPE, text=True,
                               check=True).stdout
        self.programs = re.findall(r'^(\S+): (?:C|CXX)_(?:EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY)_LINKER', rules, re.M)
        self.targets = set(re.findall(r'^(test_\w+): phony', rules, re.M))  # each builds the program that has this test

    def make(self, tests=None):
        """Builds all, or the programs of these tests and what they start and load."""
        wanted = []
        if tests is not None:
            own = {re.sub('_(cuda|cudnn)$', '', name) for name in tests} | set(tests)
            wanted = sorted(own & self.targets)
            wanted += [path for path in self.programs if not os.path.basename(path).startswith(('test', 'bench_'))]
        return limited(['ninja', '-C', self.build, '-j', str(self.jobs), *wanted], self.directory, None)[0] == 0

    def source(self, fault):
        return find_source(self.directory, fault)

    def tests(self, regex):
        out = subprocess.run(['ctest', '-N', '-R', regex], cwd=self.build, stdout=subprocess.PIPE, text=True).stdout
        return re.findall(r'^ *Test +#\d+: (\S+)$', out, re.M)

    def mirrored(self, path):
        """The programs of the folder that mirrors the source's, and of the folders above it; of operations also those of
        proto/step, where programs run."""
        programs, folder = [], os.path.join('tests', os.path.dirname(path))
        while folder != 'tests':
            programs += self.programs_in(folder)
            folder = os.path.dirname(folder)
        return programs + (self.programs_in('tests/proto/step') if path.startswith('proto/operation/') else [])

    def programs_in(self, folder):
        programs = []
        if os.path.isdir(os.path.join(self.directory, folder)):
            for name in sorted(os.listdir(os.path.join(self.directory, folder))):
                if re.fullmatch(r'test_\w+\.c', name):
                    programs += self.tests(rf'^{name[:-2]}(_cuda|_cudnn)?$')
        return programs

    def namesakes(self, path):
        """Of the mirrored programs those whose names share a word with the source's."""
        words = set(os.path.basename(path).split('.')[0].split('_'))
        return [name for name in self.mirrored(path) if words & set(name.split('_'))]

    def failing(self, names, stop):
        """Of these tests those that fail, or, to stop, the first one that does; None if that takes beyond the limit."""
        if not names:
            return []
        words = ['ctest', '-j', str(self.jobs), '-R', '^(' + '|'.join(names) + ')$']
        status, out = limited(words + ['--stop-on-failure'] * stop, self.build, self.limit_s if stop else None)
        failed = re.findall(r'Test +#\d+: (\S+) [^*\n]*\*\*\*(?!Skipped|Not Run)', out)
        return None if status is None else failed[:1] if stop else failed


def run(faults, results, tree, then, only):
    done = {}
    if os.path.exists(results):
        with open(results) as f:
            done = {line['id']: line for line in map(json.loads, f)}
    out = open(results, 'a')

    def note(line):
        out.write(json.dumps(line) + '\n')
        out.flush()

    wanted = [f for f in faults if (not only or f['id'] in only) and f['id'] not in done]
    last = tree.tests(then) if then else []
    if 0 not in done:
        names = sorted(set(last).union(*(tree.mirrored(tree.source(f)) for f in wanted if tree.source(f))))
        if not tree.make():
            sys.exit('mutation.py: the tree does not build without a fault')
        commit = subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=tree.directory, stdout=subprocess.PIPE, text=True)
        began = time.monotonic()
        done[0] = {'id': 0, 'commit': commit.stdout.strip(), 'tests': len(names), 'failing': tree.failing(names, False),
                   'seconds': round(time.monotonic() - began)}
        note(done[0])
    unfit = set(done[0]['failing'])
    tree.limit_s += 2 * done[0]['seconds']
    for fault in wanted:
        began = time.monotonic()
        line = {'id': fault['id'], 'found': True, 'by': None}
        source = tree.source(fault)
        path = os.path.join(tree.directory, source or '')
        text = open(path).read() if source else ''
        changed = planted(text, fault)
        if changed is None:
            note(line | {'found': None, 'by': 'gone'})
            continue
        with open(path, 'w') as f:
            f.write(changed)
        try:
            tried = set(unfit)
            for names in (tree.namesakes(source), tree.mirrored(source), last):
                names = [t for t in names if t not in tried]
                tried.update(names)
                if names and not tree.make(None if names[0] in last else names):
                    line['by'] = 'the compiler'
                    break
                found = tree.failing(names, True)
                if found is None or found:
                    line['by'] = found[0] if found else 'the limit of time'
                    break
            line['found'] = line['by'] is not None
        finally:
            with open(path, 'w') as f:
                f.write(text)
        line['seconds'] = round(time.monotonic() - began)
        note(line)
        print(f"{fault['id']:4} {fault['kind']:10} {source}:{fault['line']}: {line['by'] or 'not found'}", flush=True)


def check(faults):
    gone = [fault for fault in faults if not find_source(ROOT, fault)]
    for fault in gone:
        print(f"fault {fault['id']}: {fault['file']} has not its text", file=sys.stderr)
    twice = []
    for key in ('id',), ('file', 'line', 'old', 'new'):
        seen = set()
        for fault in faults:
            what = tuple(fault[k] for k in key)
            if what in seen:
                twice.append(fault)
                print(f"fault {fault['id']}: another has this {'number' if key == ('id',) else 'text'}", file=sys.stderr)
            seen.add(what)
    return 1 if gone or twice else 0


def compare(before, after):
    def found(path):
        with open(path) as f:
            return {line['id']: line for line in map(json.loads, f) if line['id']}

    old, new = found(before), found(after)
    lost = [i for i in sorted(old) if old[i]['found'] and i in new and new[i]['found'] is False]
    gone = [i for i in sorted(old) if old[i]['found'] and (i not in new or new[i]['found'] is None)]
    gained = [i for i in sorted(new) if new[i]['found'] and i in old and old[i]['found'] is False]
    print(f'found before: {sum(x["found"] is True for x in old.values())} of {len(old)}; '
          f'now: {sum(x["found"] is True for x in new.values())} of {len(new)}')
    for what, ids in (('lost', lost), ('gone or not run', gone), ('gained', gained)):
        for i in ids:
            print(f'{what}: {i}, found by {(old if what != "gained" else new)[i]["by"]}')
    return 1 if lost or gone else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    command = commands.add_parser('draw')
    command.add_argument('seed', type=int)
    command.add_argument('n', type=int)
    command = commands.add_parser('run')
    command.add_argument('faults')
    command.add_argument('results')
    command.add_argument('--tree', required=True)
    command.add_argument('--then', default='^test_')
    command.add_argument('--only', type=lambda text: {int(x) for x in text.split(',')}, default=set())
    command.add_argument('--limit', type=int, default=900, help='seconds beyond twice what all tests take without a fault')
    command.add_argument('-j', type=int, default=2)
    command = commands.add_parser('check')
    command.add_argument('faults')
    command = commands.add_parser('compare')
    command.add_argument('before')
    command.add_argument('after')
    args = parser.parse_args()
    if args.command == 'draw':
        print('[' + ',\n '.join(json.dumps(f) for f in draw(args.seed, args.n)) + ']')
    elif args.command == 'run':
        adopt()
        with open(args.faults) as f:
            faults = json.load(f)
        run(faults, os.path.abspath(args.results), Tree(os.path.abspath(args.tree), args.j, args.limit), args.then,
            args.only)
    elif args.command == 'check':
        with open(args.faults) as f:
            sys.exit(check(json.load(f)))
    else:
        sys.exit(compare(args.before, args.after))


if __name__ == '__main__':
    main()
