/* turns.c - see turns.h. */
#include "cli/turns.h"

#include <string.h>

enum { ANSWER = 256 }; /* tokens of an answer that nothing is said of */

static bool is_user(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "user") == 0;
}

bool turns_drop_oldest(const json_t *messages, size_t *first) {
    size_t next = *first + 1;
    const size_t n = json_array_size(messages);
    while (next < n && !is_user(json_array_get(messages, next))) next++;
    if (next >= n) return false;
    *first = next;
    return true;
}

int32_t turns_reserve(int32_t ctx, int32_t predict) {
    const int32_t most = predict > 0 ? predict : ANSWER, share = ctx / 4;
    return most < share ? most : share;
}
