/* tests/kit/users.h - a daemon that serves a group, and real programs of several users around it. Only root can play
 * them. */
#ifndef TESTS_KIT_USERS_H
#define TESTS_KIT_USERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* PRIMARY is asked to come without the group. */
enum { USERS_OWNER = 54321, USERS_MEMBER, USERS_PRIMARY, USERS_STRANGER };

/* Root may, and there is a group that has a name here and is not root's. */
bool users_can(void);

/* As processes_setup, with a directory in it that the owner can make a daemon's in. Undo: processes_remove. */
void users_setup(void);

gid_t users_group(void);
const char *users_group_name(void);
const char *users_service(void); /* the daemon's directory */
const char *users_log(void);     /* of whatever was started last */

/* The calling process becomes this user, in the group or not. False, and it is not to go on: it cannot. */
bool users_become(uid_t uid, bool member);

/* Starts a program as this user; what it says goes to the log. */
pid_t users_start(uid_t uid, bool member, const char *program, const char *const *argv);
int users_run(uid_t uid, bool member, const char *program, const char *const *argv);
/* eps WORD SERVICE; owner and member are in the group. */
int users_eps(uid_t uid, const char *word);
/* Both stand in the log. */
void users_check_log(const char *first, const char *second);

/* epsd --group, or with another such option, up. */
pid_t users_start_service(const char *option);

#endif
