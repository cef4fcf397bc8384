"""mutants.py - relay.py with one rule broken in each class.

search.py must find each of SEEN in its world, and compare.py's traces must tell each from the specification: so neither
passes because it looks away.
"""
from relay import ANY, RESERVED, Relay


class NoAttempt(Relay):
    """whoever names a part speaks for it"""
    def is_current(self, w, p, attempt):
        return True


class NoNumber(Relay):
    """the owner is checked, the attempt is not"""
    def is_current(self, w, p, attempt):
        return self.owner[p] == w


class EarlyUpdate(Relay):
    """updates when part 0 is in"""
    def is_ready(self, u):
        return all(n in self.folded for n in self.names if self.visits[n[0]] == u and n[1] == 0)


class WrongVersion(Relay):
    """answers a pull below the version with what there is"""
    def buffer_of(self, t, u):
        return 'void' if self.is_over(t) else 'wait' if self.version[u] < t else 'now'


class LateAnswer(Relay):
    """answers a pull of a step that is over with what there is"""
    def buffer_of(self, t, u):
        return 'wait' if self.version[u] < t else 'now'


class LateReplay(Relay):
    """answers a pull of a covered step from the replay buffer"""
    def buffer_of(self, t, u):
        covered, self.covered = self.covered, False
        where = super().buffer_of(t, u)
        self.covered = covered
        return where


class LateRefused(Relay):
    """refuses a pull of a step that is over"""
    def on_pull(self, w, t, u):
        if self.is_over(t):
            return self.refuse(w, 'version is gone')
        super().on_pull(w, t, u)


class LateForgotten(Relay):
    """leaves a pull of a step that is over without an answer"""
    def on_pull(self, w, t, u):
        if not self.is_over(t):
            super().on_pull(w, t, u)


class LateWaits(Relay):
    """lets a pull wait whose version is gone"""
    def buffer_of(self, t, u):
        where = super().buffer_of(t, u)
        return 'wait' if where == 'void' else where


class TornForgotten(Relay):
    """leaves pulls that wait without an answer when the model is torn"""
    def answer_waiting(self):
        if not self.torn:
            super().answer_waiting()


class TooVoid(Relay):
    """answers a pull of a version that will come as if it never would"""
    def buffer_of(self, t, u):
        where = super().buffer_of(t, u)
        return 'void' if where == 'wait' else where


class NoReserve(Relay):
    """never grants the reserved slot"""
    def grant(self):
        pass


class OwnLowest(Relay):
    """grants the reserved slot for the worker's own lowest contribution"""
    def may_use_reserved(self, name):
        return True

    def grant(self):
        for w in sorted(self.inbox):
            own = [n for n in self.names if self.owner[n[1]] == w and n not in self.folded]
            if self.covered or not own or own[0] in self.flying():
                continue
            if self.inbox[w][RESERVED] or None in self.inbox[w][1:]:
                continue
            this = (self.t, own[0], self.attempt[own[0][1]])
            if this not in self.inbox[w] and self.granted.get(w) != this:
                self.granted[w] = this
                self.act('grant', w, *own[0])


class FoldInSave(Relay):
    """folds what a reader looks at"""
    def is_held(self, u):
        return False


class CutNow(Relay):
    """saves the present version though a fold was issued"""
    def on_save(self, r):
        units = set(self.visits)
        self.readers[r] = (self.t, units, set())
        for u in sorted(units):
            self.capture(u)


class TiedOnce(Relay):
    """forgets the second visit of a tied unit"""
    def is_ready(self, u):
        if self.config.commit != 'eager':
            return super().is_ready(u)
        top = max(v for v in range(len(self.visits)) if self.visits[v] == u)
        return all(n in self.folded for n in self.names if n[0] == top)


class DoubleDecay(Relay):
    """decays at the first fold of every part"""
    def is_first(self, name):
        return not any(n[1] == name[1] and self.visits[n[0]] == self.visits[name[0]] and n[2] == name[2]
                       for n in self.folded)


class GreedySums(Relay):
    """accumulators go first come, first served"""
    def has_accumulator(self, v):
        if not self.accumulates(v) or self.is_tied(self.visits[v]):
            return True
        used = {self.visits[n[0]] for n in list(self.folded) + self.flying()
                if not self.is_tied(self.visits[n[0]]) and self.version[self.visits[n[0]]] == self.t}
        return self.visits[v] in used or len(used) < self.config.accumulators


class NoLossFence(Relay):
    """folds a worker's contributions when its own loss is finite"""
    def is_foldable(self, name):
        kept, self.loss = self.loss, [True] * self.config.parts
        ok = super().is_foldable(name)
        self.loss = kept
        return ok


class AllLosses(Relay):
    """waits for all losses under fenced commit, too"""
    def is_foldable(self, name):
        return (all(self.loss) or self.config.commit == 'folded') and super().is_foldable(name)


class AllLossesFolded(Relay):
    """waits for all losses under folded commit, too"""
    def is_foldable(self, name):
        return (all(self.loss) or self.config.commit == 'fenced') and super().is_foldable(name)


class BlindRedo(Relay):
    """redoes without replay what cannot be redone"""
    def can_redo(self, p):
        return True


class AnyOrder(Relay):
    """ignores --deterministic"""
    def is_next_part(self, name):
        return True


class EagerFence(Relay):
    """fenced, but updates each unit as it is covered"""
    def is_ready(self, u):
        if self.config.commit == 'folded':
            return super().is_ready(u)
        return all(n in self.folded for n in self.names if self.visits[n[0]] == u)


class EarlyFolded(Relay):
    """folded, but updates each unit as it is covered"""
    def is_ready(self, u):
        if self.config.commit == 'fenced':
            return super().is_ready(u)
        return all(n in self.folded for n in self.names if self.visits[n[0]] == u)


class SkipsFolded(Relay):
    """skips a folded step, though some of it is in the moments"""
    def give_up(self):
        kept = self.config
        if kept.commit == 'folded':
            self.config = kept._replace(commit='fenced')
        super().give_up()
        self.config = kept


class GivesUp(Relay):
    """folded, gives up at the first slice that is not finite"""
    def on_folded(self, u, s, verdict):
        if verdict != 'ok' and self.config.commit == 'folded':
            self.faults[self.jobs[u, s][2][1][1]] += 1
        super().on_folded(u, s, verdict)


class GivesLossUp(Relay):
    """folded, gives up at the first loss that is not finite"""
    def is_begun(self):
        return False


class NoRedo(Relay):
    """folded, redoes without replay only what is not begun"""
    def can_redo(self, p):
        return super().can_redo(p) and (self.config.replay or self.config.commit == 'fenced' or
                                        not any(n[1] == p for n in list(self.folded) + self.flying()))


class EarlyFree(Relay):
    """a duplicate frees the slot its first copy stands in"""
    def on_contribution(self, w, t, v, p, s, attempt, k):
        if w in self.inbox and self.inbox[w][k] == (t, (v, p, s), attempt):
            self.act('free', w, k, v, p, s)
        super().on_contribution(w, t, v, p, s, attempt, k)


class KeepInbox(Relay):
    """accepts contributions to a step that was skipped"""
    def on_contribution(self, w, *x):
        kept, self.covered = self.covered, False
        super().on_contribution(w, *x)
        self.covered = kept


class OneSum(Relay):
    """sums both visits of a tied unit in one place, though there are several parts"""
    def is_apart(self, u):
        return False


class TwoSums(Relay):
    """sums the visits of a tied unit apart, though there is one part"""
    def is_apart(self, u):
        return self.is_tied(u)


class TiedGreedy(Relay):
    """takes no accumulator into account for the lower visit of a tied unit"""
    def accumulates(self, v):
        return super().accumulates(v) and not self.is_tied(self.visits[v])


class LateSum(Relay):
    """begins both sums of a tied unit with the first that comes"""
    def is_first(self, name):
        return not any(self.visits[n[0]] == self.visits[name[0]] and n[2] == name[2] for n in self.folded)


class ByVisit(Relay):
    """takes the mark visit by visit where parts come group by group"""
    def find_mark(self):
        left = [n for n in self.names if n not in self.folded]
        return min(left, key=lambda n: (-n[0], n[1], n[2]), default=None)


class MarkAlone(Relay):
    """grants the reserved slot for the mark alone in row groups, too"""
    def find_reserved(self):
        return self.find_mark()


class Beyond(Relay):
    """grants the reserved slot beyond another worker's part"""
    def find_reserved(self):
        mark = self.find_mark()
        if not self.config.groups or mark is None:
            return mark
        return [n for n in self.names if self.owner[n[1]] == self.owner[mark[1]]][-1]


# ---- rooms ----------------------------------------------------------------------------------------------------------

class Roomless(Relay):
    """gives parts to workers without room"""
    def with_room(self):
        return list(self.inbox)


class Unleaving(Relay):
    """gives parts to a worker that is leaving, with room 0"""
    def with_room(self):
        return [w for w in self.inbox if not self.room[w] or self.load(w) < self.room[w]]


class Shortsighted(Relay):
    """lets a part wait if the worker with the least to do has no room"""
    def with_room(self):
        least = min(self.inbox, key=lambda w: (self.load(w), w), default=None)
        return [w for w in super().with_room() if w == least]


class Recount(Relay):
    """counts loads once for all parts that it places"""
    def place(self):
        self.counted = {w: super(Recount, self).load(w) for w in self.inbox}
        super().place()

    def load(self, w):
        return self.counted[w]


class Owned(Relay):
    """counts parts that a worker has finished"""
    def load(self, w):
        return self.owner.count(w)


class Folded(Relay):
    """counts parts until all is folded, with the thread or not"""
    def load(self, w):
        left = {n[1] for n in self.names if n not in self.folded}
        return sum(o == w and p in left for p, o in enumerate(self.owner))


class Forgetful(Relay):
    """places nothing when a room grows"""
    def feed(self, event):
        self.grows = event[0] == 'room'
        return super().feed(event)

    def place_waiting(self):
        if not self.grows:
            self.place()


class Idle(Relay):
    """places nothing when a worker has finished a part"""
    def feed(self, event):
        self.grows = event[0] == 'room'
        return super().feed(event)

    def place_waiting(self):
        if self.grows:
            self.place()


class Sticky(Relay):
    """takes a worker that attaches anew for one with the room that it had"""
    first = {}

    def on_attached(self, w, room=ANY):
        self.first = {w: room, **self.first}
        super().on_attached(w, self.first[w])


class Hasty(Relay):
    """places parts before it knows the room of who attaches"""
    def on_attached(self, w, room=ANY):
        super().on_attached(w)
        self.room[w] = room


class Evicting(Relay):
    """takes parts from a worker whose room shrinks"""
    def on_room(self, w, room):
        for p, owner in enumerate(self.owner):
            if owner == w and self.load(w) > room:
                self.owner[p] = None
        super().on_room(w, room)


class Despairing(Relay):
    """gives the step up where a part has to wait"""
    def place(self):
        super().place()
        if self.inbox and any(o is None and self.is_unfinished(p) for p, o in enumerate(self.owner)):
            self.give_up()


class Wide(Relay):
    """opens a step beyond the rooms"""
    def on_open(self, *x):
        kept, self.room = self.room, dict.fromkeys(self.room, ANY)
        super().on_open(*x)
        self.room = kept


class Narrow(Relay):
    """refuses to open a step that fills a room"""
    def on_open(self, *x):
        kept, self.room = self.room, {w: n - 1 for w, n in self.room.items()}
        super().on_open(*x)
        self.room = kept


class Rigid(Relay):
    """computes all steps in the first one's order"""
    def on_open(self, t, visits, *x):
        same = sorted(visits) == sorted(self.visits)
        super().on_open(t, self.visits if same else visits, *x)


class Numbering(Relay):
    """takes the mark in the order of units, not of visits"""
    def find_mark(self):
        left = [n for n in self.names if n not in self.folded]
        return max(left, key=lambda n: (self.visits[n[0]], n[0], -n[1], -n[2]), default=None)


# ---- audits ---------------------------------------------------------------------------------------------------------

class Unaudited(Relay):
    """folds before the auditor has judged"""
    def is_agreed(self, name, w, k):
        return name not in self.digests or super().is_agreed(name, w, k)


class Deaf(Relay):
    """folds what the auditor has computed otherwise"""
    def is_agreed(self, name, w, k):
        return name[1] != self.audited or name in self.digests or not self.auditing

    def judge(self):
        return False


class Lingering(Relay):
    """waits for an auditor that is lost"""
    def on_unaudit(self, w):
        if w in self.inbox:
            super().on_unaudit(w)


class Mute(Relay):
    """waits for an auditor that will send no more"""
    def on_unaudit(self, w):
        if w not in self.inbox:
            super().on_unaudit(w)


class Credulous(Relay):
    """takes digests of an auditor that was lost since"""
    def on_digest(self, w, *x):
        kept, self.auditing = self.auditing, True
        super().on_digest(w, *x)
        self.auditing = kept


class Timeless(Relay):
    """takes digests of another step"""
    def on_digest(self, w, t, *x):
        super().on_digest(w, self.t, *x)


class Hanging(Relay):
    """names the owner for a difference, without a third result"""
    def differ(self, name, w, digest):
        self.act('liar', w)
        self.on_lost(w)
        return True


class Biased(Relay):
    """ignores the third result, and believes the auditor"""
    def decide(self, w, digest):
        return super().decide(w, self.digests[self.dispute[0]])


class Vain(Relay):
    """lets a worker decide for itself"""
    def decide(self, w, digest):
        name, first, theirs = self.dispute
        if w == self.audits != first and digest == self.digests[name] or w == first and digest == theirs:
            self.dispute = name, self.audits if w == self.audits else first, theirs
        return super().decide(-1, digest)


class Partial(Relay):
    """has one of the two decide though there is another"""
    def recruit(self, w):
        if self.auditing and self.may_restart(self.audits):
            w = self.audits
        super().recruit(w)


class Resigned(Relay):
    """does not have the first worker compute again"""
    def try_again(self):
        return self.end_undecided(self.dispute[1])


class Waiting(Relay):
    """waits for a third worker that is lost"""
    def on_unaudit(self, w):
        kept, third = self.dispute, self.referee
        super().on_unaudit(w)
        if w == third:
            self.dispute, self.referee = kept, w


class Stale(Relay):
    """takes what a worker had sent of its share before it began anew"""
    def restart(self, w):
        kept = list(self.attempt)
        super().restart(w)
        self.attempt = kept


class Lenient(Relay):
    """believes an auditor that it has named"""
    def decide(self, w, digest):
        kept = dict(self.digests)
        more = super().decide(w, digest)
        self.digests = kept
        return more


class Hopeful(Relay):
    """takes a third result for decisive that agrees with none"""
    def decide(self, w, digest):
        known = self.dispute[2], self.digests[self.dispute[0]]
        return super().decide(w, digest if digest in known else known[0])


class Remembering(Relay):
    """keeps digests for the next step"""
    def on_open(self, *x):
        kept = dict(self.digests)
        super().on_open(*x)
        self.digests = {**kept, **self.digests}


# ---- damage ---------------------------------------------------------------------------------------------------------

class Trusting(Relay):
    """takes a damaged slice for folded"""
    def on_folded(self, u, s, verdict):
        super().on_folded(u, s, 'ok' if verdict == 'damaged' else verdict)


class Severe(Relay):
    """takes a damaged slice for one that is not finite"""
    def on_folded(self, u, s, verdict):
        super().on_folded(u, s, 'bad' if verdict == 'damaged' else verdict)


class Idling(Relay):
    """has nobody compute a damaged slice again"""
    def redo(self, w, p, attempt):
        if not self.is_current(w, p, attempt):
            super().redo(w, p, attempt)


class Crowding(Relay):
    """has a worker take a part back whose place others have"""
    def is_back(self, p):
        return False


class Usurping(Relay):
    """takes a part away that its worker has not finished yet"""
    def is_back(self, p):
        return True


class Meddling(Relay):
    """has a worker begin anew for a slice of another attempt"""
    def redo(self, w, p, attempt):
        if self.owner[p] in self.inbox:
            w, attempt = self.owner[p], self.attempt[p]
        super().redo(w, p, attempt)


class Brazen(Relay):
    """has a share redone that cannot be"""
    def redo(self, w, p, attempt):
        kept, self.config = self.config, self.config._replace(replay=True)
        super().redo(w, p, attempt)
        self.config = kept


class Roomy(Relay):
    """has nobody who is leaving redo what it has sent"""
    def redo(self, w, p, attempt):
        if self.room.get(w) != 0:
            super().redo(w, p, attempt)


# ---- what no world sees: the step goes on as well -------------------------------------------------------------------

class Patient(Relay):
    """gives up at the third fault"""
    def fault(self, w, p):
        self.faults[p] -= 0.5
        super().fault(w, p)


class Careless(Relay):
    """frees at a skip what the thread reads"""
    def give_up(self):
        kept = dict(self.jobs)
        if self.config.commit == 'fenced':
            self.jobs = {}
        super().give_up()
        self.jobs = kept


class Anyone(Relay):
    """takes digests of any worker"""
    def on_digest(self, w, *x):
        super().on_digest(self.audits if w in self.inbox else w, *x)


UNSEEN = [Anyone, Patient, Careless]
ALL = [x for x in list(globals().values()) if isinstance(x, type) and issubclass(x, Relay) and x is not Relay]
SEEN = [x for x in ALL if x not in UNSEEN]
