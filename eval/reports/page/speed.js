/* speed.js - reports of speed: bench (plain decoding, arms, policies, sessions, attention), acceptance,
 * lossless and comparisons with another program. */

const rateRange = (name, colour, spread, rate) => ({ label: name, colour,
    low: num(spread, 'min'), mid: Number.isFinite(rate) ? rate : num(spread, 'median'), high: num(spread, 'max') });

/* A speed-up, or why there is none. */
function speedupCell(name, arm) {
    const reason = text(arm, 'withheld');
    if (Number.isFinite(num(arm, 'speedup'))) return num(arm, 'speedup');
    return !reason ? null : name === 'plain' ? reason : withheld(reason);
}

/* ---- plain decoding ---- */

function plainParts(r) {
    const plain = object(r, 'arms', 'plain'), contexts = objects(r, 'contexts');
    const rows = [['decode', 'decode_tok_s'], ['prefill', 'prefill_tok_s']]
        .filter(([, key]) => isObject(plain[key])).map(([name, key]) => [name, ...spreadCells(plain[key])]);
    if (rows.length === 0) return [];
    const facts = [['tokens decoded in a repeat', num(r, 'settings', 'predict')],
        ['context, tokens', num(r, 'settings', 'ctx')],
        ['time per token, ms', num(plain, 'round_ms')],
        ['weights read, GB/s', num(plain, 'decode_gb_s')],
        ['bandwidth of the machine before, GB/s', num(r, 'bandwidth', 'before_gb_s')],
        ['bandwidth of the machine after, GB/s', num(r, 'bandwidth', 'after_gb_s')],
        ['share of that bandwidth', asShare(num(plain, 'bandwidth_share'))],
        ['share of the rate at which a buffer of that size is read', asShare(num(plain, 'floor_share'))]];
    return [el('h3', null, 'Plain decoding'),
        table('Tokens per second', 'what|#median|#min|#max|#repeats', rows),
        table('What that is of the machine', 'figure|#value', facts),
        contexts.length < 2 ? null : table('Decoding by context',
            'context, tokens|#tok/s, median|#min|#max|#repeats|#ms per token|#waits per token|#enqueued ahead per token',
            contexts.map(c => [figure(num(c, 'ctx')), ...spreadCells(c.decode_tok_s), num(c, 'round_ms'),
                               num(c, 'syncs_per_token'), num(c, 'ahead_per_token')]))];
}

/* Against context where there are several lengths, else alone. */
function plainPlot(r) {
    const contexts = objects(r, 'contexts');
    if (contexts.length < 2)
        return ranges('Plain decoding: median (dot), slowest to fastest repeat (line)',
            [rateRange('decode', 0, get(r, 'arms', 'plain', 'decode_tok_s'))], { name: 'tok/s' });
    return lines('Decoding speed against context: median, and all repeats', [{ name: 'plain',
        points: contexts.map(c => ({ x: num(c, 'ctx'), y: num(c, 'decode_tok_s', 'median'),
                                     low: num(c, 'decode_tok_s', 'min'), high: num(c, 'decode_tok_s', 'max') })) }],
        { x: 'context, tokens', y: 'tok/s' });
}

/* ---- arms ---- */

const armsOf = o => entries(o, 'arms').filter(([, a]) => Number.isFinite(num(a, 'tok_s')));

function armRow(set, name, a) {
    const spread = object(a, 'tok_s_spread');
    return [set, name, num(a, 'tokens'), num(a, 'tok_s'), num(spread, 'min'), num(spread, 'max'),
            speedupCell(name, a), num(a, 'accept_len'), num(a, 'rows_per_round'), num(a, 'of_predicted'),
            yesNo(get(a, 'lossless'))];
}

function armParts(r) {
    const sets = objects(r, 'sets');
    if (sets.length === 0) return [];
    const rows = [...sets.flatMap(s => armsOf(s).map(([name, a]) => armRow(text(s, 'set'), name, a))),
                  ...armsOf(r).map(([name, a]) => armRow('all', name, a))];
    return [el('h3', null, 'Ways to decode'),
        table('Arms by set of prompts; min and max are of single prompts',
            'prompts|arm|#tokens|#tok/s|#min|#max|#speed-up|#tokens a round|#rows a round|#of predicted|lossless',
            rows)];
}

/* Of the drafts that had a token at a position, the share whose tokens up to there were accepted. */
function acceptedByPosition(a) {
    const atLeast = (key, n) => list(a, key).slice(n).reduce((sum, x) => sum + (typeof x === 'number' ? x : NaN), 0);
    return list(a, 'drafts').slice(1).map((_, i) => ({ x: i + 1, y: atLeast('histogram', i + 1) / atLeast('drafts', i + 1) }));
}

function armPlots(r) {
    const sets = objects(r, 'sets'), names = unique(sets.flatMap(s => armsOf(s).map(([name]) => name)));
    const each = sets.flatMap(s => armsOf(s).map(([name, a]) => [`${text(s, 'set')}, ${name}`, name, a]));
    const parts = ['draft', 'verify', 'choose', 'commit', 'other'];
    return [
        ranges('Tokens per second: of all tokens (dot), slowest to fastest prompt (line)',
            each.map(([label, name, a]) => rateRange(label, names.indexOf(name), get(a, 'tok_s_spread'), num(a, 'tok_s'))),
            { name: 'tok/s' }),
        ranges('Speed-up over plain decoding of the same prompts; withheld ones are not drawn',
            each.map(([label, name, a]) => ({ label, colour: names.indexOf(name), mid: num(a, 'speedup') })),
            { name: 'times plain decoding', mark: 1 }),
        bars('A round from its beginning (left) to its end: mean time of each part',
            entries(r, 'arms').filter(([, a]) => isObject(a.parts) && num(a, 'rounds') > 0).map(([label, a]) =>
                ({ label, parts: parts.map(p => 1e3 * num(a, 'parts', `${p}_s`) / num(a, 'rounds')) })),
            parts, { name: 'ms per round' }),
        lines('Acceptance by position: of drafts that long, those accepted up to there', entries(r, 'arms')
            .filter(([, a]) => list(a, 'drafts').length > 1).map(([name, a]) => ({ name, points: acceptedByPosition(a) })),
            { x: 'position in the draft', y: 'share of drafts', showY: percent, fromZero: true }),
        lines('Rounds by the tokens they accepted', entries(r, 'arms')
            .filter(([, a]) => list(a, 'histogram').length > 1).map(([name, a]) =>
                ({ name, points: list(a, 'histogram').map((n, x) => ({ x, y: typeof n === 'number' ? n : NaN })) })),
            { x: 'tokens accepted', y: 'rounds' }),
    ];
}

/* ---- costs of forwards ---- */

const passPoints = all => all.map(p => ({ x: num(p, 'rows'), y: num(p, 'ms') }));

function costPlot(r) {
    const costs = object(objects(r, 'sets')[0], 'costs');
    return lines('Time of a forward by its rows, and of a draft by its tokens: medians', [
        { name: 'whole model', points: passPoints(objects(r, 'rows', 'whole_model')) },
        { name: 'verify', points: passPoints(objects(costs, 'verify')) },
        { name: 'draft', points: passPoints(objects(costs, 'draft')) },
    ], { x: 'rows', y: 'ms' });
}

function costParts(r) {
    const of = (key, name) => table(name, 'rows|#ms|#min|#max|#times one row|#experts a layer|#GB of weights|#GB/s',
        objects(r, 'rows', key).map(p => [figure(num(p, 'rows')), num(p, 'ms'), num(p, 'ms_min'), num(p, 'ms_max'),
            num(p, 'ratio'), num(p, 'experts'), num(p, 'gb'), num(p, 'gb_s')]));
    const parts = [of('whole_model', 'Forwards of the whole model by rows'),
                   of('dense_q4_0', 'A dense q4_0 matrix by rows')].filter(Boolean);
    return parts.length ? [el('h3', null, 'Cost of rows'), ...parts] : [];
}

/* ---- policies, sessions, attention, bytes ---- */

const KV = ['kv.sliding', 'kv.full', 'kv.drafter', 'kv.latents'];
const kvBytes = o => KV.reduce((sum, key) => sum + (num(o, 'bytes', key) || 0), 0);

function policyParts(r) {
    const rows = objects(r, 'policies').flatMap(p => entries(p, 'arms').map(([name, a]) =>
        [text(p, 'policy'), name, ...spreadCells(a.token_ms).slice(0, 3), name === 'plain' ? num(p, 'ratio') : null,
         speedupCell(name, a), num(a, 'rows_per_token'), num(a, 'keys_per_query', 'stored'),
         num(a, 'keys_per_query', 'rebuilt'), asBytes(kvBytes(p)), yesNo(get(a, 'lossless'))]));
    return rows.length === 0 ? [] : [el('h3', null, 'What layers keep'),
        table(`Time per token at a context of ${figure(num(r, 'settings', 'ctx'))} tokens`,
            'policy|arm|#ms per token|#min|#max|#times exact|#speed-up|#rows rebuilt per token|#keys stored per query|#keys rebuilt per query|#K/V and latents|lossless',
            rows)];
}

function policyPlots(r) {
    const policies = objects(r, 'policies'), names = unique(policies.flatMap(p => Object.keys(object(p, 'arms'))));
    const each = policies.flatMap(p => entries(p, 'arms').map(([name, a]) =>
        rateRange(names.length > 1 ? `${text(p, 'policy')}, ${name}` : text(p, 'policy'), names.indexOf(name), a.token_ms)));
    return [ranges('Time per token by policy: median (dot), least to most of the turns (line)', each,
                   { name: 'ms per token' }),
            bars('K/V and latents of one session', policies.map(p =>
                ({ label: text(p, 'policy'), parts: KV.map(key => num(p, 'bytes', key)) })), KV,
                { name: 'bytes', show: bytes })];
}

function sessionParts(r) {
    const s = object(r, 'sessions'), arrival = object(s, 'arrival');
    if (!isObject(s.together)) return [];
    const row = (name, o) => [name, num(o, 'tokens'), num(o, 'seconds'), num(o, 'tok_s'),
                              num(o, 'tok_s_spread', 'min'), num(o, 'tok_s_spread', 'max'), num(o, 'tok_s_spread', 'n')];
    return [el('h3', null, `${figure(num(s, 'n'))} sessions`),
        table(`Tokens per second of all sessions at a context of ${figure(num(s, 'ctx'))} tokens`,
            'how|#tokens|#seconds|#tok/s|#min|#max|#turns',
            [row('one after the other', s.alone), row('together', s.together)]),
        table('Together', 'figure|#value', [['times one after the other', num(s, 'ratio')],
            ['sessions in a round', num(s, 'sessions_in_rounds') / num(s, 'rounds')],
            ['logits as alone', yesNo(get(s, 'identical'))]]),
        isObject(s.arrival) ? table('A prompt that is read beside a session that decodes', 'figure|#value', [
            ['prompt, tokens', num(arrival, 'prompt')], ['read alone, s', num(arrival, 'alone_s')],
            ['read beside it, s', num(arrival, 'beside_s')], ['chunks', num(arrival, 'chunks')],
            ['gap between tokens, median, ms', 1e3 * num(arrival, 'gap_s', 'median')],
            ['gap between tokens, longest, ms', 1e3 * num(arrival, 'gap_s', 'max')],
            ['logits as alone', yesNo(get(arrival, 'identical'))]]) : null];
}

function sessionPlot(r) {
    const s = object(r, 'sessions');
    return ranges('Tokens per second of all sessions: all turns (dot), slowest to fastest turn (line)',
        [['one after the other', 'alone'], ['together', 'together']].map(([name, key], i) =>
            rateRange(name, i, get(s, key, 'tok_s_spread'), num(s, key, 'tok_s'))), { name: 'tok/s' });
}

function attentionParts(r) {
    const formats = objects(r, 'attention', 'formats');
    return formats.length === 0 ? [] : [el('h3', null, 'Attention over K/V formats'),
        table(`One row at a context of ${figure(num(r, 'attention', 'ctx'))} tokens, all layers`,
            'format|#ms|#min|#max|#time, of bf16|#K/V|#bytes, of bf16',
            formats.map(f => [text(f, 'kv_format'), num(f, 'ms'), num(f, 'ms_min'), num(f, 'ms_max'), num(f, 'ratio'),
                              asBytes(num(f, 'kv_bytes')), num(f, 'kv_ratio')]))];
}

const attentionPlot = r => ranges('Attention of one row by K/V format: median (dot), least to most (line)',
    objects(r, 'attention', 'formats').map((f, i) => ({ label: text(f, 'kv_format'), colour: i,
        low: num(f, 'ms_min'), mid: num(f, 'ms'), high: num(f, 'ms_max') })), { name: 'ms' });

function bytesParts(o) {
    const rows = Object.entries(object(o)).filter(([, n]) => typeof n === 'number' && n !== 0)
        .map(([name, n]) => [name, n, asBytes(n)]);
    return rows.length === 0 ? [] : [el('h3', null, 'Memory'),
        table('Bytes by category, as the allocator counts them', 'category|#bytes|#', rows)];
}

/* The first rounds, the longest, and how even they are after warm-up. */
function roundTimeParts(r) {
    const rows = entries(r, 'arms').filter(([, a]) => isObject(a.round_times)).map(([name, a]) => {
        const t = a.round_times, first = list(t, 'first_ms').map(x => figure(Number(x))).join(', ');
        return [name, num(t, 'n'), num(t, 'mean_ms'), num(t, 'longest_ms'), num(t, 'steady', 'mean_ms'),
                num(t, 'steady', 'deviation_ms'), num(t, 'steady', 'cv'), { show: first, kind: 'text' }];
    });
    return rows.length === 0 ? [] : [table('Round times, all rounds and those after warm-up',
        'arm|#rounds|#mean, ms|#longest, ms|#mean after warm-up, ms|#deviation, ms|#coefficient of variation|first rounds, ms',
        rows)];
}

function bench(r) {
    return [plainParts(r), armParts(r), roundTimeParts(r), policyParts(r), sessionParts(r),
            figures(plainPlot(r), armPlots(r), policyPlots(r), sessionPlot(r), attentionPlot(r), costPlot(r)),
            attentionParts(r), costParts(r), bytesParts(get(r, 'bytes'))];
}

/* ---- acceptance ---- */

function accept(r) {
    const all = [...objects(r, 'sets'), ...objects(r, 'all')];
    const scales = unique(all.map(f => text(f, 'embed_scale')));
    return [el('h3', null, 'Acceptance by kinds of text'),
        table('Drafts of always the same length',
            'prompts|arm|embedding scale|#prompts|#drafted|#accepted of drafted|#tokens a round|lossless',
            all.map(f => [text(f, 'set'), text(f, 'arm'), text(f, 'embed_scale'), num(f, 'prompts'), num(f, 'drafted'),
                          num(f, 'rate'), num(f, 'length'), yesNo(get(f, 'lossless'))])),
        figures(ranges('Accepted of drafted tokens', all.map(f => ({ label: [text(f, 'set'), text(f, 'arm'),
                scales.length > 1 ? text(f, 'embed_scale') : ''].filter(Boolean).join(', '),
                colour: scales.indexOf(text(f, 'embed_scale')), low: 0, mid: num(f, 'rate'), high: num(f, 'rate') })),
            { name: 'share of drafted tokens', mark: 1 }),
        lines('Rounds by the tokens they accepted', objects(r, 'all').map(f => ({
            name: [text(f, 'arm'), text(f, 'embed_scale')].filter(Boolean).join(', '),
            points: list(f, 'histogram').map((n, x) => ({ x, y: typeof n === 'number' ? n : NaN })) })),
            { x: 'tokens accepted', y: 'rounds' }))];
}

/* ---- lossless, compare ---- */

function lossless(r) {
    const rows = entries(r, 'cases_by').flatMap(([axis, values]) =>
        Object.entries(values).map(([name, n]) => [axis, name, typeof n === 'number' ? n : null]));
    return [el('p', null, `${figure(num(r, 'cases'))} cases of drafted against plain decoding, `,
               `${figure(num(r, 'mismatches'))} differ. Compared: `,
               list(r, 'compared').filter(v => typeof v === 'string').join(', ') || NONE, '.'),
        table('Cases by what was varied', 'axis|value|#cases', rows)];
}

function compare(r) {
    const both = key => entries(r, key).map(([name, s]) => [name === 'peer' ? text(r, 'peer', 'name') || name : name, s]);
    const kinds = [['decode', 'decode_tok_s'], ['prefill', 'prefill_tok_s']];
    const rows = kinds.flatMap(([what, key]) => both(key).map(([name, s]) => [`${what}, ${name}`, ...spreadCells(s)]));
    const ratios = [['decode', 'decode_ratio'], ['prefill', 'prefill_ratio']].filter(([, key]) => isObject(get(r, key)))
        .map(([what, key]) => [what, ...spreadCells(r[key])]);
    return [el('h3', null, `Kakeya beside ${text(r, 'peer', 'name') || 'another program'} ${text(r, 'peer', 'build')}`),
        table('Tokens per second', 'what|#median|#min|#max|#turns', rows),
        table('Times the other, turn by turn', 'what|#median|#min|#max|#turns', ratios),
        table('Forwards by rows', 'rows|#ms|#ms, the other',
            objects(r, 'forwards').map(f => [figure(num(f, 'rows')), num(f, 'ms'), num(f, 'peer_ms', 'median')])),
        figures(kinds.map(([what, key]) => ranges(`${what[0].toUpperCase()}${what.slice(1)}: median (dot), least to most of the turns (line)`,
            both(key).map(([name, s], i) => rateRange(name, i, s)), { name: 'tok/s' })),
            ranges('Times the other, turn by turn', ratios.map(([label, mid, low, high], i) =>
                ({ label, colour: i, low, mid, high })), { name: 'times the other', mark: 1 }))];
}
