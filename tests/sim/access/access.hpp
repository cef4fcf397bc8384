/* tests/sim/access/access.hpp - how the threads of a warp touch memory together: sectors of global memory, banks of
 * shared memory.
 *
 * Kernels are compiled a second time for this, with calls at each access (g++ -fsanitize=thread, whose calls come here
 * instead of to its runtime) and without optimization: so what is counted is what the source says. Accesses of a warp are
 * one request if they are the same access of the source, by the same way of calls, as often repeated since the warp last
 * met; that is what the hardware sees of threads that go the same way.
 *
 *   global   a request takes as many sectors of 32 bytes as it touches; `excess` are those beyond what its bytes fill
 *   shared   32 banks of 4 bytes; threads of a request come 32 at a time (of 4 bytes or less), 16 (of 8) or 8 (of 16), and
 *            take as many turns as there are different words in the fullest bank; `conflicts` are the turns after the
 *            first. Of ldmatrix, 8 rows of 16 bytes at a time */
#ifndef CUDASIM_ACCESS_HPP
#define CUDASIM_ACCESS_HPP

#include <map>
#include <string>

struct cudasim_accesses {
    unsigned long global, sectors, excess, shared, conflicts;
};

/* By kernel, since the last call. */
std::map<std::string, cudasim_accesses> cudasim_take_accesses();

#endif
