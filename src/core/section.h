/* section.h - where a piece of saved state is written to, and where it is read from.
 *
 * Whoever saves its state puts it into a section in parts, and whoever frames the file decides
 * where the section lies and how it is sealed: each part that is not empty has a checksum of its
 * own behind it.  A section is written and read without the engine's lock; work on a device, which
 * sessions share, is done while the section holds it. */
#ifndef KK_CORE_SECTION_H
#define KK_CORE_SECTION_H

#include "core/error.h"

typedef struct kk_section_out kk_section_out;
struct kk_section_out {
    bool measures; /* only sizes are wanted: data of put may be NULL */
    kk_status (*put)(kk_section_out *to, const void *data, size_t n, kk_err *err);
    /* The part ends here; the next begins. */
    kk_status (*end_part)(kk_section_out *to, kk_err *err);
    void (*hold_device)(kk_section_out *to, bool held);
};

typedef struct kk_section_in kk_section_in;
struct kk_section_in {
    int32_t format; /* version of the file, by which the layout of its parts may differ */
    /* The next n bytes, all of them: KK_EFORMAT where there are fewer. */
    kk_status (*get)(kk_section_in *from, void *to, size_t n, kk_err *err);
    /* Checks the part that ends here; `what` names it in the sentence about one that is damaged:
     * "its <what> do not match their checksum". */
    kk_status (*end_part)(kk_section_in *from, const char *what, kk_err *err);
    void (*hold_device)(kk_section_in *from, bool held);
};

#endif
