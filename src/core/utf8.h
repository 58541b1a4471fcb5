/* utf8.h - strict UTF-8, one character at a time, and the few facts about characters that the
 * tokenizer and the chat format need. */
#ifndef KK_CORE_UTF8_H
#define KK_CORE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at s (1 to 4) with its code point in *cp, or 0 when the n bytes do not
 * start with a whole valid one.  Overlong forms and surrogates are not valid. */
size_t kk_utf8_next(const char *s, size_t n, uint32_t *cp);
/* Writes cp, which must be valid, and returns its bytes. */
size_t kk_utf8_put(char out[4], uint32_t cp);
bool kk_utf8_valid(const char *s, size_t n);
/* How many bytes at the end (0 to 3) start a character that more bytes could complete. */
size_t kk_utf8_unfinished(const char *s, size_t n);

/* White space as Unicode's White_Space property has it. */
bool kk_utf8_is_space(uint32_t cp);
/* Bytes of white space at the start and at the end of the n bytes.  separators: 1C to 1F count
 * too, as they do for Python's str.strip. */
size_t kk_utf8_space_before(const char *s, size_t n, bool separators);
size_t kk_utf8_space_after(const char *s, size_t n, bool separators);
/* Case of one character, for the alphabets whose cases pair up one to one. */
uint32_t kk_utf8_lower(uint32_t cp);
uint32_t kk_utf8_upper(uint32_t cp);

#endif
