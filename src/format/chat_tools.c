/* chat_tools.c - how the Gemma 4 format declares tools: a JSON schema, rewritten field by field.
 *
 * The reference is a template with habits of its own, and models were trained on what it prints:
 * a parameter that is called like a schema's field is passed over, an object without properties
 * lists its other fields as if they were some, and a schema without a type leaves its bracket
 * open.  These are kept.  Fields of a wrong type, which the template would print as Python
 * objects, are refused. */
#include <string.h>

#include "core/alloc.h"
#include "format/chat.h"

/* Where we are, for messages. */
typedef struct {
    kk_chat_text *out;
    const char *tool;
} declaration;

static void wrong(const declaration *d, const char *what) {
    kk_chat_fail(d->out, KK_EINVAL, "the declaration of tool '%.80s' is wrong: %s", d->tool, what);
}

/* A field of what may not even be a map. */
static const json_t *field(const json_t *map, const char *name) {
    const json_t *v = json_object_get(map, name);
    return v && !json_is_null(v) ? v : NULL;
}

static bool type_is(const json_t *schema, const char *name) {
    const json_t *type = field(schema, "type");
    if (!json_is_string(type) || json_string_length(type) != strlen(name)) return false;
    const char *text = json_string_value(type);
    for (size_t i = 0; name[i]; i++) {
        const char c = text[i] >= 'a' && text[i] <= 'z' ? (char)(text[i] - 'a' + 'A') : text[i];
        if (c != name[i]) return false;
    }
    return true;
}

/* description:"...", without a comma. */
static bool put_description(const declaration *d, const json_t *schema) {
    const json_t *text = field(schema, "description");
    if (!kk_chat_truth(text)) return false;
    if (!json_is_string(text)) {
        wrong(d, "a description is not a string");
        return false;
    }
    kk_chat_put(d->out, "description:");
    kk_chat_quoted(d->out, text);
    return true;
}

/* required:[...], without a comma; false when there is nothing to write. */
static bool put_required(const declaration *d, const json_t *schema) {
    const json_t *list = field(schema, "required");
    if (!kk_chat_truth(list)) return false;
    if (!json_is_array(list)) {
        wrong(d, "'required' is not a list");
        return false;
    }
    kk_chat_put(d->out, "required:[");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *name = json_array_get(list, i);
        if (!json_is_string(name)) wrong(d, "'required' holds something that is not a string");
        if (i) kk_chat_put(d->out, ",");
        kk_chat_quoted(d->out, name);
    }
    kk_chat_put(d->out, "]");
    return true;
}

/* The value of a type: "STRING", and for a list of them what Python prints. */
static void put_type(const declaration *d, const json_t *type) {
    kk_chat_put_mark(d->out, KK_MARK_QUOTE);
    if (json_is_string(type)) {
        kk_chat_upper(d->out, type);
    } else if (json_is_array(type)) {
        kk_chat_put(d->out, "[");
        for (size_t i = 0; i < json_array_size(type); i++) {
            const json_t *name = json_array_get(type, i);
            if (!json_is_string(name)) wrong(d, "a type is not a string");
            kk_chat_put(d->out, i ? ", '" : "'");
            kk_chat_upper(d->out, name);
            kk_chat_put(d->out, "'");
        }
        kk_chat_put(d->out, "]");
    } else if (type) {
        wrong(d, "a type is neither a string nor a list");
    }
    kk_chat_put_mark(d->out, KK_MARK_QUOTE);
}

static void put_properties(const declaration *d, const json_t *map);

/* ---- lists ------------------------------------------------------------------------------ */

static void put_item_type(const declaration *d, const json_t *type) {
    kk_chat_put(d->out, "type:");
    if (!json_is_array(type)) {
        put_type(d, type);
        return;
    }
    kk_chat_put(d->out, "[");
    for (size_t i = 0; i < json_array_size(type); i++) {
        if (i) kk_chat_put(d->out, ",");
        put_type(d, json_array_get(type, i));
    }
    kk_chat_put(d->out, "]");
}

static void put_item_field(const declaration *d, const kk_chat_member *m, const json_t *items) {
    if (strcmp(m->key, "properties") == 0) {
        kk_chat_put(d->out, "properties:{");
        if (json_is_object(m->value)) put_properties(d, m->value);
        kk_chat_put(d->out, "}");
    } else if (strcmp(m->key, "required") == 0) {
        if (!put_required(d, items)) kk_chat_put(d->out, "required:[]");
    } else if (strcmp(m->key, "type") == 0) {
        put_item_type(d, m->value);
    } else {
        kk_chat_bytes(d->out, m->key, m->key_len);
        kk_chat_put(d->out, ":");
        kk_chat_value(d->out, m->value, true);
    }
}

static void put_items(const declaration *d, const json_t *items) {
    size_t n, written = 0;
    kk_chat_member *members = kk_chat_sorted(d->out, items, &n);
    kk_chat_put(d->out, "items:{");
    for (size_t i = 0; i < n; i++) {
        if (json_is_null(members[i].value)) continue;
        if (written++) kk_chat_put(d->out, ",");
        put_item_field(d, &members[i], items);
    }
    kk_chat_put(d->out, "}");
    kk_free(members);
}

/* ---- properties ------------------------------------------------------------------------- */

/* A comma, unless this is the first thing written. */
static void separate(const declaration *d, bool *any) {
    if (*any) kk_chat_put(d->out, ",");
    *any = true;
}

static void put_object_parts(const declaration *d, const json_t *schema, bool *any) {
    const json_t *properties = field(schema, "properties");
    separate(d, any);
    kk_chat_put(d->out, "properties:{");
    put_properties(d, json_is_object(properties) ? properties : schema);
    kk_chat_put(d->out, "}");
    if (!kk_chat_truth(field(schema, "required"))) return;
    separate(d, any);
    put_required(d, schema);
}

static void put_property(const declaration *d, const json_t *schema) {
    bool any = put_description(d, schema);
    const json_t *items = field(schema, "items");
    if (type_is(schema, "STRING") && kk_chat_truth(field(schema, "enum"))) {
        separate(d, &any);
        kk_chat_put(d->out, "enum:");
        kk_chat_value(d->out, field(schema, "enum"), true);
    } else if (type_is(schema, "ARRAY") && json_is_object(items) && kk_chat_truth(items)) {
        separate(d, &any);
        put_items(d, items);
    }
    if (kk_chat_truth(field(schema, "nullable"))) {
        separate(d, &any);
        kk_chat_put(d->out, "nullable:true");
    }
    if (type_is(schema, "OBJECT")) put_object_parts(d, schema, &any);
    separate(d, &any);
    kk_chat_put(d->out, "type:");
    put_type(d, field(schema, "type"));
}

static bool is_schema_field(const char *name) {
    static const char *const names[] = {"description", "type", "properties", "required",
                                        "nullable"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static void put_properties(const declaration *d, const json_t *map) {
    size_t n, written = 0;
    kk_chat_member *members = kk_chat_sorted(d->out, map, &n);
    for (size_t i = 0; i < n; i++) {
        if (is_schema_field(members[i].key)) continue;
        if (written++) kk_chat_put(d->out, ",");
        kk_chat_bytes(d->out, members[i].key, members[i].key_len);
        kk_chat_put(d->out, ":{");
        put_property(d, members[i].value);
        kk_chat_put(d->out, "}");
    }
    kk_free(members);
}

/* ---- a tool ----------------------------------------------------------------------------- */

static void put_parameters(const declaration *d, const json_t *params) {
    if (!json_is_object(params)) {
        wrong(d, "'parameters' is not an object");
        return;
    }
    kk_chat_put(d->out, ",parameters:{");
    const json_t *properties = field(params, "properties");
    if (kk_chat_truth(properties)) {
        if (!json_is_object(properties)) wrong(d, "'properties' is not an object");
        kk_chat_put(d->out, "properties:{");
        put_properties(d, properties);
        kk_chat_put(d->out, "},");
    }
    if (put_required(d, params)) kk_chat_put(d->out, ",");
    const json_t *type = field(params, "type");
    if (!kk_chat_truth(type)) return;
    kk_chat_put(d->out, "type:");
    put_type(d, type);
    kk_chat_put(d->out, "}");
}

static void put_response(const declaration *d, const json_t *response) {
    kk_chat_put(d->out, ",response:{");
    if (put_description(d, response)) kk_chat_put(d->out, ",");
    if (!type_is(response, "OBJECT")) return;
    kk_chat_put(d->out, "type:");
    put_type(d, field(response, "type"));
    kk_chat_put(d->out, "}");
}

void kk_chat_tool(kk_chat_text *out, const json_t *tool, size_t index) {
    const json_t *function = json_object_get(tool, "function");
    const json_t *name = json_object_get(function, "name");
    if (!json_is_string(name)) {
        kk_chat_fail(out, KK_EINVAL, "tools[%zu] has no function with a name", index);
        return;
    }
    const declaration d = {out, json_string_value(name)};
    const json_t *description = field(function, "description");
    kk_chat_put_mark(out, KK_MARK_TOOL);
    kk_chat_put(out, "declaration:");
    kk_chat_string(out, name);
    kk_chat_put(out, "{description:");
    if (description && !json_is_string(description)) wrong(&d, "its description is not a string");
    kk_chat_put_mark(out, KK_MARK_QUOTE);
    if (json_is_string(description)) kk_chat_string(out, description);
    kk_chat_put_mark(out, KK_MARK_QUOTE);
    if (kk_chat_truth(field(function, "parameters")))
        put_parameters(&d, field(function, "parameters"));
    if (json_object_get(function, "response"))
        put_response(&d, json_object_get(function, "response"));
    kk_chat_put(out, "}");
    kk_chat_put_mark(out, KK_MARK_TOOL_END);
}
