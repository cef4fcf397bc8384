/* proto/wire/message_internal.h - fields of messages, each function for both directions (proto/wire/wire.h). */
#ifndef PROTO_WIRE_MESSAGE_INTERNAL_H
#define PROTO_WIRE_MESSAGE_INTERNAL_H

#include "proto/wire/message.h"
#include "proto/wire/wire.h"

/* message_fields.c: structs that several messages have, field by field. */
enum number_type message_number_field(struct wire *w, enum number_type value);
/* The commit in one byte: eager, fenced or folded. */
void message_commit_field(struct wire *w, bool *fenced, bool *folded);
void message_name_fields(struct wire *w, struct contribution_name *name);
/* Blocks, as many words as are needed. Reading adds to a set that is empty. */
void message_drop_fields(struct wire *w, struct model_drop *drop);
void message_order_fields(struct wire *w, struct model_order *order);
void message_goal_fields(struct wire *w, struct plan_goal *goal);
void message_choice_fields(struct wire *w, struct plan_choice *choice);
void message_ledger_fields(struct wire *w, struct ledger *ledger);
void message_products_fields(struct wire *w, struct products *p);
void message_profile_fields(struct wire *w, struct profile *p);
void message_rewards_fields(struct wire *w, struct preference_rewards *rewards);
void message_done_fields(struct wire *w, struct message_done *done);
/* -errno; a number that cannot be one is 0. */
void message_code_field(struct wire *w, int32_t *value);

/* message_observe.c: the fields of whole messages. */
void message_status_body(struct wire *w, struct message *m);
void message_status_reply_body(struct wire *w, struct message *m);
void message_memory_body(struct wire *w, struct message *m);
void message_memory_reply_body(struct wire *w, struct message *m);
void message_ledger_body(struct wire *w, struct message *m);
void message_units_body(struct wire *w, struct message *m);
void message_units_reply_body(struct wire *w, struct message *m);
void message_workers_reply_body(struct wire *w, struct message *m);
void message_recent_reply_body(struct wire *w, struct message *m);
void message_queue_reply_body(struct wire *w, struct message *m);

#endif
