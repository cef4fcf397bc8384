"""setting.py - a setting of the search, and what a worker is and says in it."""
from collections import namedtuple

from explore import frozen_in, visits_in

# One setting of the search. faults: at most `n_faults` of these happen, anywhere.
#   kill  a worker is lost      stop  is lost, wakes, sends what it was about to, attaches again under its old number
#   dup   a message comes twice      resume  its session breaks; it sends again all that was not acknowledged
#   bad   a slice is not finite      badloss  a loss is not finite
#   damage  what stands in a slot has changed when the thread reads it
#   again a pull comes a second time, at any moment later      ahead  a worker pulls for the next step before its share
#   leave a worker gets no more parts, and goes at their end
#   lie   a digest, or a contribution to the audited part, is wrong once      liar  all of a worker's are, from now on
#   quit  an auditor is dead, and lost once all that it has sent whole is folded; then auditors need not audit first, either
# queue: messages of one worker that may be under way.
# coarse: a pull that is answered at once is one move with the sending of the next, and readers release the lowest
#   unit first (fewer orders, same messages).
# visits: the unit of each; or a tuple of such tuples, orders that the steps take in turn.
# frozen: units, or a tuple of such tuples, which the steps take in turn.
# groups: the most parts that a worker takes forward and backward together, one such row group after another; 0: any
#   number. With config.groups, those of a row group follow each other.
# audits: each step has an audited part, part 0 first, and another worker than its owner for auditor, if there is one.
# rooms: of each worker, and of those that attach later one of `later`; (): any number. changes: at most so many rooms
#   change.
Setting = namedtuple('Setting', 'name config visits frozen workers late steps faults n_faults saves queue coarse '
                     'rooms later changes groups audits',
                     defaults=((), 2, 0, 2, (), 1, 0, 0, True, (), (), 0, 0, False))


def groups_of(setting, parts):
    groups, most = [], setting.groups or len(parts)
    for p in parts:
        if groups and len(groups[-1]) < most and (groups[-1][-1] + 1 == p or not setting.config.groups):
            groups[-1].append(p)
        else:
            groups.append([p])
    return groups or [[]]


def program(setting, step, parts):
    """What one pass over these parts says, in order: forward from the bottom, losses, backward from the top; group by
    group."""
    frozen, visits = frozen_in(setting, step), visits_in(setting, step)
    say = []
    for group in groups_of(setting, parts):
        say += [('pull', v) for v in range(len(visits))] + [('loss', p) for p in group]
        for v in reversed(range(len(visits))):
            say.append(('pull', v))
            if visits[v] not in frozen:
                say += [('contribution', (v, p, s)) for p in group for s in range(setting.config.slices)]
    return tuple(say)


# A pass: step, its parts with their attempts, place in the program, is its pull unanswered, (unit, buffer) being read, does it
# audit its part: then digests stand for contributions, and nothing for losses.
Pass = namedtuple('Pass', 't share pc waiting reading audit', defaults=(False,))

# Runs its passes in any interleaving: one must be able to go on while another waits for a slot. (A worker with memory for
# one pass gets the same messages out by dropping a pass and starting it again.) With config.groups it does just that: a
# share replaces the pass under way by one over all parts that the relay has not heard all of, in ascending order.
# slots: what it wrote there, as (t, name, attempt). grant: (t, name), the last name for the reserved slot; without
# config.groups, nothing below it is wanted. queue: messages under way.
Worker = namedtuple('Worker', 'attached passes slots grant queue')


def new_worker(setting, attached=False):
    return Worker(attached, (), (None,) * (1 + setting.config.slots), None, ())
