/* vocab.c - see vocab.h.
 *
 * Texts lie in one arena, because a quarter of a million of them would otherwise cost more in
 * headers than in letters.  The table is open addressing over (hash, id): a probe touches a text
 * only when all 32 bits of the hash agree, and growing it touches none. */
#include "format/vocab.h"

#include <string.h>

#include "core/alloc.h"

/* FNV-1a, because it can go on from one text into the next: most are shorter than a word, and
 * the joined text of a merge is looked up without ever being written. */
static const uint64_t hash_start = 0xcbf29ce484222325u;

static uint64_t hash_more(uint64_t h, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h;
}

static uint32_t hash_end(uint64_t h) {
    h *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

static uint32_t hash_text(const char *s, size_t n) { return hash_end(hash_more(hash_start, s, n)); }

void kk_vocab_free(kk_vocab *v) {
    kk_free(v->arena);
    kk_free(v->pieces);
    kk_free(v->slots);
    *v = (kk_vocab){0};
}

static bool has_text(const kk_vocab *v, int32_t id, const char *text, size_t len) {
    const kk_piece p = v->pieces[id];
    return p.len == len && memcmp(v->arena + p.offset, text, len) == 0;
}

/* The slot of a text, or the free one where it would go. */
static size_t slot_of(const kk_vocab *v, uint32_t hash, const char *text, size_t len) {
    size_t at = hash & (v->n_slots - 1);
    for (; v->slots[at].id >= 0; at = (at + 1) & (v->n_slots - 1))
        if (v->slots[at].hash == hash && has_text(v, v->slots[at].id, text, len)) break;
    return at;
}

int32_t kk_vocab_find(const kk_vocab *v, const char *text, size_t len) {
    if (v->n_slots == 0) return -1;
    return v->slots[slot_of(v, hash_text(text, len), text, len)].id;
}

int32_t kk_vocab_find_joined(const kk_vocab *v, int32_t left, int32_t right) {
    const kk_piece l = v->pieces[left], r = v->pieces[right];
    const char *lt = v->arena + l.offset, *rt = v->arena + r.offset;
    const uint32_t hash = hash_end(hash_more(hash_more(hash_start, lt, l.len), rt, r.len));
    size_t at = hash & (v->n_slots - 1);
    for (; v->slots[at].id >= 0; at = (at + 1) & (v->n_slots - 1)) {
        const kk_piece p = v->pieces[v->slots[at].id];
        const char *text = v->arena + p.offset;
        if (v->slots[at].hash == hash && p.len == (size_t)l.len + r.len &&
            memcmp(text, lt, l.len) == 0 && memcmp(text + l.len, rt, r.len) == 0)
            break;
    }
    return v->slots[at].id;
}

/* Doubles the table when it is half full: probes stay short, and one is always free. */
static bool grow_table(kk_vocab *v) {
    if ((v->n_texts + 1) * 2 <= v->n_slots) return true;
    const size_t n = v->n_slots ? v->n_slots * 2 : 1024;
    kk_vocab_slot *slots = kk_malloc(n * sizeof *slots);
    if (!slots) return false;
    for (size_t i = 0; i < n; i++) slots[i] = (kk_vocab_slot){0, -1};
    for (size_t i = 0; i < v->n_slots; i++) {
        if (v->slots[i].id < 0) continue;
        size_t at = v->slots[i].hash & (n - 1);
        while (slots[at].id >= 0) at = (at + 1) & (n - 1);
        slots[at] = v->slots[i];
    }
    kk_free(v->slots);
    v->slots = slots;
    v->n_slots = n;
    return true;
}

static bool grow_pieces(kk_vocab *v, int32_t id) {
    const size_t before = v->pieces_cap;
    if (!kk_grow((void **)&v->pieces, &v->pieces_cap, (size_t)id + 1, sizeof *v->pieces))
        return false;
    memset(v->pieces + before, 0, (v->pieces_cap - before) * sizeof *v->pieces);
    return true;
}

kk_status kk_vocab_add(kk_vocab *v, int64_t id, const char *text, size_t len, const char *label,
                       kk_err *err) {
    const int shown = len < 60 ? (int)len : 60;
    if (id < 0 || id >= KK_MAX_VOCAB)
        return kk_fail(err, KK_EFORMAT, "%s: token '%.*s' has the id %lld, which is not below %d",
                       label, shown, text, (long long)id, KK_MAX_VOCAB);
    if (len == 0) return kk_fail(err, KK_EFORMAT, "%s: token %lld is empty", label, (long long)id);
    if (id < v->size && v->pieces[id].len)
        return kk_fail(err, KK_EFORMAT, "%s: two tokens have the id %lld, one is '%.*s'", label,
                       (long long)id, shown, text);
    if (len > UINT32_MAX - v->arena_len)
        return kk_fail(err, KK_EFORMAT, "%s: the vocabulary is too large", label);
    if (!grow_table(v) || !grow_pieces(v, (int32_t)id) ||
        !kk_grow((void **)&v->arena, &v->arena_cap, v->arena_len + len, 1))
        return kk_fail(err, KK_ENOMEM, "no memory for the vocabulary of %s", label);

    const uint32_t hash = hash_text(text, len);
    const size_t at = slot_of(v, hash, text, len);
    if (v->slots[at].id >= 0)
        return kk_fail(err, KK_EFORMAT, "%s: tokens %d and %lld have the same text '%.*s'", label,
                       v->slots[at].id, (long long)id, shown, text);
    memcpy(v->arena + v->arena_len, text, len);
    v->slots[at] = (kk_vocab_slot){hash, (int32_t)id};
    v->pieces[id] = (kk_piece){(uint32_t)v->arena_len, (uint32_t)len};
    v->arena_len += len;
    v->n_texts++;
    if (id >= v->size) v->size = (int32_t)id + 1;
    return KK_OK;
}
