/* writer.h - how every file of this project is written: whole or not at all, and over nothing that
 * was not meant.  kakeya.h has kk_writer_open, kk_writer_close and what they promise; this is the
 * rest, for the code that produces the bytes. */
#ifndef KK_CORE_WRITER_H
#define KK_CORE_WRITER_H

#include "core/error.h"

kk_status kk_writer_put(kk_writer *w, const void *data, size_t len, kk_err *err);
uint64_t kk_writer_offset(const kk_writer *w); /* bytes put so far */
/* Brings what was put to the disk, so that the commit that follows has only a name to change. */
kk_status kk_writer_sync(kk_writer *w, kk_err *err);
/* The file is complete: gives it its name.  Only kk_writer_close is allowed afterwards, also after
 * a failure, which leaves what was there before. */
kk_status kk_writer_commit(kk_writer *w, kk_err *err);

#endif
