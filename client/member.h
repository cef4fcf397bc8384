/* client/member.h - sentences for callers of libeps.
 *
 * Inside, a sentence names an option as the command line has it: --device-mem. A caller of libeps knows the member of
 * that name, so its sentence has `device_mem`; the commands put the option's name back. A command line that a sentence
 * proposes, "start one with epsd --listen lab", stays. */
#ifndef CLIENT_MEMBER_H
#define CLIENT_MEMBER_H

/* Changes the sentence in place; its length stays. */
void client_name_members(char *sentence);

/* Calls on_note (may be NULL) with such a sentence. */
void client_tell(void (*on_note)(void *user, const char *sentence), void *user, const char *sentence);

#endif
