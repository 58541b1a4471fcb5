/* gate_older.c - reports that were taken before some members were asked for.
 *
 * Their machines are not at hand, so that they cannot be taken again.  What a later schema asks for
 * is not asked of these very reports, by the hash of their content; any other report that names an
 * older schema is held to all of it, so that nothing is escaped by a smaller number. */
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "eval/reports/gate_rules.h"

static const uint64_t older[] = {
    0x9b778019257b6702u, /* 26b-a4b-q4_0-ctx4096.json */
    0x74e40f15f6c4fba5u, /* 26b-a4b-q4_0.json */
    0xffcf051e461d55f6u, /* 26b-a4b-q8_0-12-layers.json */
    0x5cc7ede08a616c84u, /* attention-26b-a4b-6-layers-ctx4096.json */
    0xfe1c548364b18185u, /* compare-llama.cpp-26b-a4b-q4_0-slow.json */
    0xd4777038031a3959u, /* compare-llama.cpp-26b-a4b-q4_0.json */
    0xfcb627ac7a54f5f3u, /* compare-transformers-26b-a4b-bf16.json */
    0x0b51b310ab0d5018u, /* gpu-26b-a4b-bf16.json */
    0x13685d4f9ebaa492u, /* gpu-drafts-26b-a4b-bf16.json */
    0xa8ff1e3b77e53015u, /* gpu-drafts-3-26b-a4b-bf16.json */
    0xf0f09185776b8a9cu, /* gpu-sampling-26b-a4b-bf16.json */
    0xad1c7ea5839a9428u, /* memory-26b.json */
    0xf06665f7c19d0c39u, /* projection-attn_distill.json */
    0x42236743283f543bu, /* projection-attn_distill_hybrid.json */
    0x198b47622d8e13cfu, /* projection-combined.json */
    0xe8ce9815efafbcd0u, /* projection-cos_mag.json */
    0x56b90b00411cdfa6u, /* projection-mse.json */
    0xe6c082b824a7f241u, /* models/tiny/projection/report.json */
    0x564f87e69421b2ecu, /* sessions-gpu-26b-a4b-bf16-16.json */
    0x539ae6dd664e30d5u, /* sessions-gpu-26b-a4b-bf16-8.json */
};

static uint64_t hash_of(const json_t *report) {
    char *text = json_dumps(report, JSON_SORT_KEYS | JSON_COMPACT | JSON_REAL_PRECISION(17));
    const uint64_t hash = text ? kk_hash_bytes(KK_HASH_START, text, strlen(text)) : 0;
    free(text);
    return hash;
}

bool kk_gate_is_older(const json_t *report) {
    const uint64_t hash = hash_of(report);
    for (size_t i = 0; i < sizeof older / sizeof *older; i++)
        if (older[i] == hash) return true;
    return false;
}
