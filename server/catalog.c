/* catalog.c - see catalog.h.  Statements are prepared where they are used: they run once a turn. */
#define _GNU_SOURCE
#include "server/catalog.h"

#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/server.h"

/* Another program may look at the index for a moment; who holds it for longer is not waited for,
 * since other sessions wait meanwhile. */
enum { BUSY_MS = 200 };

struct catalog {
    sqlite3 *db;
};

static const char schema[] =
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
    "CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, kind INT, created INT, used INT,"
    " tokens INT, chain INT, turns INT, prompt INT, journal_bytes INT, kv_tokens INT,"
    " kv_bytes INT, identity INT, meta TEXT) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS prefixes (hash INT, tokens INT, id TEXT,"
    " PRIMARY KEY (hash, tokens, id)) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS prefixes_of ON prefixes (id, tokens);"
    "CREATE INDEX IF NOT EXISTS sessions_used ON sessions (kind, used);";

static kk_status failed(const catalog *c, kk_err *err) {
    const int code = sqlite3_errcode(c->db);
    const bool damaged = code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
    return server_fail(err, damaged ? KK_EFORMAT : KK_EIO, "the index: %s", sqlite3_errmsg(c->db));
}

/* A statement with its values: s a text, i an int64_t. */
static sqlite3_stmt *prepare(catalog *c, const char *sql, const char *types, ...) {
    sqlite3_stmt *s = NULL;
    va_list ap;
    if (sqlite3_prepare_v2(c->db, sql, -1, &s, NULL) != SQLITE_OK) return NULL;
    va_start(ap, types);
    for (int i = 0; types[i]; i++) {
        if (types[i] == 's')
            sqlite3_bind_text(s, i + 1, va_arg(ap, const char *), -1, SQLITE_TRANSIENT);
        else
            sqlite3_bind_int64(s, i + 1, va_arg(ap, int64_t));
    }
    va_end(ap);
    return s;
}

/* Runs one that has no rows. */
static kk_status finish(catalog *c, sqlite3_stmt *s, kk_err *err) {
    const int code = s ? sqlite3_step(s) : SQLITE_ERROR;
    const kk_status st = code == SQLITE_DONE || code == SQLITE_ROW ? KK_OK : failed(c, err);
    sqlite3_finalize(s);
    return st;
}

/* ---- life -------------------------------------------------------------------------------- */

static bool is_whole(sqlite3 *db) {
    sqlite3_stmt *s = NULL;
    bool whole = sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &s, NULL) == SQLITE_OK &&
                 sqlite3_step(s) == SQLITE_ROW &&
                 strcmp((const char *)sqlite3_column_text(s, 0), "ok") == 0;
    sqlite3_finalize(s);
    return whole;
}

kk_status catalog_open(catalog **out, const char *path, kk_err *err) {
    catalog *c = *out = calloc(1, sizeof *c);
    if (!c) return server_fail(err, KK_ENOMEM, "no memory for the index");
    const int how = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    const bool opened = sqlite3_open_v2(path, &c->db, how, NULL) == SQLITE_OK;
    kk_status st = opened ? KK_OK : failed(c, err);
    if (opened) sqlite3_busy_timeout(c->db, BUSY_MS);
    if (opened && !is_whole(c->db))
        st = server_fail(err, KK_EFORMAT, "the index '%.150s' is damaged", path);
    if (st == KK_OK && sqlite3_exec(c->db, schema, NULL, NULL, NULL) != SQLITE_OK)
        st = failed(c, err);
    if (st == KK_OK) return KK_OK;
    catalog_close(c);
    *out = NULL;
    return st;
}

void catalog_close(catalog *c) {
    if (!c) return;
    sqlite3_close_v2(c->db);
    free(c);
}

/* ---- rows -------------------------------------------------------------------------------- */

#define COLUMNS                                                                                    \
    "sessions.id, kind, created, used, sessions.tokens, chain, turns, prompt, journal_bytes, "     \
    "kv_tokens, kv_bytes, identity, meta"

void catalog_row_free(catalog_row *r) {
    free(r->meta);
    r->meta = NULL;
}

/* The row borrows its text from the statement. */
static catalog_row row_of(sqlite3_stmt *s) {
    catalog_row r = {.kind = (uint32_t)sqlite3_column_int64(s, 1),
                     .created = sqlite3_column_int64(s, 2),
                     .used = sqlite3_column_int64(s, 3),
                     .tokens = sqlite3_column_int64(s, 4),
                     .chain = (uint64_t)sqlite3_column_int64(s, 5),
                     .turns = sqlite3_column_int(s, 6),
                     .prompt = sqlite3_column_int(s, 7),
                     .journal_bytes = sqlite3_column_int64(s, 8),
                     .kv_tokens = sqlite3_column_int64(s, 9),
                     .kv_bytes = sqlite3_column_int64(s, 10),
                     .identity = (uint64_t)sqlite3_column_int64(s, 11),
                     .meta = (char *)sqlite3_column_text(s, 12)};
    const char *id = (const char *)sqlite3_column_text(s, 0);
    snprintf(r.id, sizeof r.id, "%s", id ? id : "");
    return r;
}

static kk_status each_row(catalog *c, sqlite3_stmt *s, catalog_each_fn each, void *user,
                          kk_err *err) {
    int code = s ? SQLITE_ROW : SQLITE_ERROR;
    bool on = true;
    while (on && code == SQLITE_ROW && (code = sqlite3_step(s)) == SQLITE_ROW) {
        const catalog_row r = row_of(s);
        on = each(user, &r);
    }
    const kk_status st = code == SQLITE_DONE || code == SQLITE_ROW ? KK_OK : failed(c, err);
    sqlite3_finalize(s);
    return st;
}

kk_status catalog_put(catalog *c, const catalog_row *r, kk_err *err) {
    return finish(c,
                  prepare(c, "INSERT OR REPLACE INTO sessions VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                          "siiiiiiiiiiis", r->id, (int64_t)r->kind, r->created, r->used, r->tokens,
                          (int64_t)r->chain, (int64_t)r->turns, (int64_t)r->prompt,
                          r->journal_bytes, r->kv_tokens, r->kv_bytes, (int64_t)r->identity,
                          r->meta ? r->meta : ""),
                  err);
}

static bool copy_row(void *user, const catalog_row *row) {
    catalog_row *out = user;
    *out = *row;
    out->meta = strdup(row->meta ? row->meta : "");
    return false;
}

bool catalog_get(catalog *c, const char *id, catalog_row *out) {
    *out = (catalog_row){.kind = 0};
    sqlite3_stmt *s = prepare(c, "SELECT " COLUMNS " FROM sessions WHERE id = ?", "s", id);
    return each_row(c, s, copy_row, out, NULL) == KK_OK && out->id[0];
}

kk_status catalog_remove(catalog *c, const char *id, kk_err *err) {
    kk_status st = finish(c, prepare(c, "DELETE FROM prefixes WHERE id = ?", "s", id), err);
    if (st != KK_OK) return st;
    return finish(c, prepare(c, "DELETE FROM sessions WHERE id = ?", "s", id), err);
}

kk_status catalog_each(catalog *c, catalog_each_fn each, void *user, kk_err *err) {
    return each_row(c, prepare(c, "SELECT " COLUMNS " FROM sessions ORDER BY created", ""), each,
                    user, err);
}

kk_status catalog_oldest(catalog *c, uint32_t kind, catalog_each_fn each, void *user, kk_err *err) {
    return each_row(c,
                    prepare(c, "SELECT " COLUMNS " FROM sessions WHERE kind = ? ORDER BY used", "i",
                            (int64_t)kind),
                    each, user, err);
}

void catalog_sum(catalog *c, catalog_sums *out) {
    sqlite3_stmt *s = prepare(
        c, "SELECT kind, count(*), sum(journal_bytes + kv_bytes) FROM sessions GROUP BY 1", "");
    *out = (catalog_sums){0};
    while (s && sqlite3_step(s) == SQLITE_ROW) {
        const int64_t kind = sqlite3_column_int64(s, 0);
        if (kind >= 0 && kind < 2) out->count[kind] = sqlite3_column_int64(s, 1);
        out->bytes += sqlite3_column_int64(s, 2);
    }
    sqlite3_finalize(s);
}

/* ---- prefixes ---------------------------------------------------------------------------- */

static kk_status insert_prefixes(catalog *c, const char *id, int64_t first, const uint64_t *hash,
                                 size_t n, kk_err *err) {
    kk_status st = KK_OK;
    for (size_t i = 0; i < n && st == KK_OK; i++)
        st = finish(c,
                    prepare(c, "INSERT OR REPLACE INTO prefixes VALUES (?, ?, ?)", "iis",
                            (int64_t)hash[i], first + (int64_t)i * CATALOG_BLOCK, id),
                    err);
    return st;
}

kk_status catalog_prefixes(catalog *c, const char *id, int64_t after, const uint64_t *hash,
                           size_t n, kk_err *err) {
    const int64_t first = CATALOG_BLOCK * (after / CATALOG_BLOCK + 1);
    kk_status st = finish(c, prepare(c, "BEGIN", ""), err);
    if (st != KK_OK) return st;
    st = finish(c, prepare(c, "DELETE FROM prefixes WHERE id = ? AND tokens > ?", "si", id, after),
                err);
    if (st == KK_OK) st = insert_prefixes(c, id, first, hash, n, err);
    const kk_status ended = finish(c, prepare(c, st == KK_OK ? "COMMIT" : "ROLLBACK", ""), NULL);
    return st == KK_OK ? ended : st;
}

kk_status catalog_match(catalog *c, uint64_t hash, int64_t n, catalog_each_fn each, void *user,
                        kk_err *err) {
    sqlite3_stmt *s = prepare(c,
                              "SELECT " COLUMNS " FROM prefixes JOIN sessions USING (id)"
                              " WHERE hash = ? AND prefixes.tokens = ? ORDER BY kv_tokens DESC",
                              "ii", (int64_t)hash, n);
    return each_row(c, s, each, user, err);
}
