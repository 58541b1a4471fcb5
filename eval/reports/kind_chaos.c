/* kind_chaos.c - reports of `make chaos`: what they hold, and the rules they are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/clients", KK_MEMBER_SIZE},
    {"settings/kills", KK_MEMBER_SIZE},
    {"settings/requests", KK_MEMBER_SIZE},
    {"settings/max_ready_s", KK_MEMBER_NUMBER},
    {"settings/max_leak", KK_MEMBER_NUMBER},
    {"kills", KK_MEMBER_LIST},
    {"kills/*/after_s", KK_MEMBER_NUMBER},
    {"kills/*/ready_s", KK_MEMBER_TIME},
    {"kills/*/turns", KK_MEMBER_COUNT},
    {"kills/*/lost", KK_MEMBER_COUNT},
    {"kills/*/different", KK_MEMBER_COUNT},
    {"faults", KK_MEMBER_LIST},
    {"faults/*/fault", KK_MEMBER_TEXT},
    {"faults/*/injected", KK_MEMBER_COUNT},
    {"faults/*/wrong", KK_MEMBER_COUNT},
    {"malformed/requests", KK_MEMBER_SIZE},
    {"malformed/crashes", KK_MEMBER_COUNT},
    {"malformed/hangs", KK_MEMBER_COUNT},
    {"malformed/resident_before", KK_MEMBER_SIZE},
    {"malformed/resident_after", KK_MEMBER_SIZE},
    {"malformed/statuses", KK_MEMBER_OBJECT},
    {"malformed_grpc/requests", KK_MEMBER_SIZE},
    {"malformed_grpc/crashes", KK_MEMBER_COUNT},
    {"malformed_grpc/hangs", KK_MEMBER_COUNT},
    {"malformed_grpc/resident_before", KK_MEMBER_SIZE},
    {"malformed_grpc/resident_after", KK_MEMBER_SIZE},
    {"malformed_grpc/ways", KK_MEMBER_OBJECT},
    {"gate/checks", KK_MEMBER_LIST},
};

static const kk_gate_group *const groups[] = {&kk_group_serving};

KK_GATE_KIND(chaos, members, groups);
