/* tools/text.h - names of files in JSON. */
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <jansson.h>

/* A string of these bytes, which are a file's name as often as not and so need not be UTF-8: each byte that is not part
 * of a character is U+FFFD. Owned by the caller; NULL: no memory. */
json_t *text_json(const char *text);

#endif
