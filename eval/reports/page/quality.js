/* quality.js - evaluations and training: recall by depth and context, KL, bytes against context,
 * sweeps, formats of K/V, and what the stages of training gave. */

const DEPTHS = 10;
const KL_TITLE = 'KL against exact decoding: mean (dot) to worst position (line)';

function checkParts(r) {
    const checks = objects(r, 'gate', 'checks');
    return checks.length === 0 ? [] : [el('h3', null,
            `Limits of the run: ${truth(r, 'gate', 'holds') ? 'all are kept' : 'not all are kept'}`),
        table('Limits', 'figure|arm|#value|#limit|kept', checks.map(c => [text(c, 'figure'), text(c, 'arm'),
            num(c, 'value'), num(c, 'limit'), yesNo(get(c, 'holds'))]))];
}

/* ---- needle ---- */

function meanRestored(rung) {
    const rows = objects(rung, 'rows');
    return rows.reduce((sum, row) => sum + num(row, 'restored_rows'), 0) / rows.length;
}

/* Hits by tenths of the document. */
function depthShares(rung) {
    const hits = Array(DEPTHS).fill(0), all = Array(DEPTHS).fill(0);
    for (const row of objects(rung, 'rows')) {
        const depth = num(row, 'depth') || 0;
        const at = Math.min(DEPTHS - 1, Math.max(0, Math.floor(depth * DEPTHS)));
        all[at]++;
        if (truth(row, 'hit')) hits[at]++;
    }
    return all.map((n, i) => (n ? hits[i] / n : NaN));
}

function rungParts(r) {
    const rungs = objects(r, 'rungs');
    return [el('h3', null, 'Recall'),
        table('Codes found, by arm and length of the documents',
            'arm|#lines|#tokens|#found|#of|#recall|#rows rebuilt per document|#K/V and latents',
            rungs.map(g => [text(g, 'arm'), num(g, 'lines'), num(g, 'tokens'), num(g, 'hits'), num(g, 'samples'),
                            num(g, 'recall'), meanRestored(g), asBytes(kvBytes(g))])),
        table('Speed', 'arm|#tokens|#prefill tok/s|#min|#max|#decode tok/s|#min|#max', rungs.map(g => [text(g, 'arm'),
            num(g, 'tokens'), num(g, 'prefill_tok_s'), num(g, 'prefill_tok_s_spread', 'min'),
            num(g, 'prefill_tok_s_spread', 'max'), num(g, 'decode_tok_s'), num(g, 'decode_tok_s_spread', 'min'),
            num(g, 'decode_tok_s_spread', 'max')]))];
}

function recallPlots(r) {
    const rungs = objects(r, 'rungs'), arms = unique(rungs.map(g => text(g, 'arm')));
    const columns = Array.from({ length: DEPTHS }, (_, i) => String(100 * i / DEPTHS + 5));
    const of = arm => rungs.filter(g => text(g, 'arm') === arm);
    return [
        arms.map(arm => heat(`Recall in percent, ${arm}: by depth of the code and length of the document`, columns,
            of(arm).map(g => ({ label: figure(num(g, 'tokens')), shares: depthShares(g) })),
            { x: 'depth in the document, %', y: 'tokens' })),
        lines('Recall against context', arms.map(arm => ({ name: arm,
            points: of(arm).map(g => ({ x: num(g, 'tokens'), y: num(g, 'recall') })) })),
            { x: 'tokens of the document', y: 'recall, share of codes' }),
    ];
}

function qualityTable(rows) {
    return table('Texts', 'arm|text|#positions|#mean KL, nats|#worst KL, nats|#loss, exact|#loss, arm|#same tokens|#of',
        rows.map(q => [text(q, 'arm'), text(q, 'text'), num(q, 'rows'), num(q, 'mean_kl'), num(q, 'worst_kl'),
                       num(q, 'loss_exact'), num(q, 'loss_arm'), num(q, 'same_prefix'), num(q, 'same_of')]));
}

function qualityParts(r) {
    const rows = objects(r, 'quality'), sums = objects(r, 'sums');
    return rows.length + sums.length === 0 ? [] : [el('h3', null, 'KL against exact decoding'),
        table('All texts together', 'arm|#mean KL, nats|#worst KL, nats|#change of loss, nats', sums.map(s =>
            [text(s, 'arm'), num(s, 'mean_kl'), num(s, 'worst_kl'), num(s, 'loss_change')])),
        rows.length ? folded(`${rows.length} texts`, () => qualityTable(rows)) : null];
}

/* names: in the order of their colours in the other plots. */
const klPlot = (rows, name, names = unique(rows.map(name))) => ranges(KL_TITLE, rows.map(s => ({
    label: name(s), colour: Math.max(0, names.indexOf(name(s))),
    low: num(s, 'mean_kl'), mid: num(s, 'mean_kl'), high: num(s, 'worst_kl') })), { name: 'KL, nats', log: true });

/* ---- bytes against context ---- */

function bytesPlot(rows, key) {
    const names = unique(rows.map(o => text(o, key))), xs = finite(rows.map(o => num(o, 'tokens')));
    const series = names.map(name => ({ name, points: rows.filter(o => text(o, key) === name)
        .map(o => ({ x: num(o, 'tokens'), y: kvBytes(o) })) }));
    if (!series.some(s => s.points.length > 1)) return null;
    return lines('K/V and latents against context, as the allocator counts them', series,
        { x: 'context, tokens', y: 'bytes', showY: bytes, logX: wideRange(xs), logY: wideRange(xs) });
}

function needle(r) {
    return [checkParts(r), rungParts(r), qualityParts(r),
            figures(recallPlots(r), klPlot(objects(r, 'sums'), s => text(s, 'arm'), unique(objects(r, 'rungs').map(g => text(g, 'arm')))), bytesPlot(objects(r, 'rungs'), 'arm'))];
}

/* Restored decoding in two steps, each against exact plain decoding: what `needle` shows, with times. */
function steps(r) {
    const limit = arm => num(objects(r, 'gate', 'checks').find(c =>
        text(c, 'figure') === 'speed_ratio' && text(c, 'arm') === arm), 'limit');
    return [table('Steps: speed against exact plain decoding', 'step|arm|#times exact|#at least|holds',
        objects(r, 'steps').map(s => [String(num(s, 'step')), text(s, 'arm'), num(s, 'speed_ratio'),
                                      limit(text(s, 'arm')), truth(s, 'holds') ? 'PASS' : 'FAIL'])),
        needle(r), policyParts(r), figures(policyPlots(r))];
}

function memory(r) {
    const rows = objects(r, 'rows'), growth = objects(r, 'growth');
    return [checkParts(r), el('h3', null, 'Bytes against context'),
        figures(bytesPlot(rows, 'policy'),
            ranges('Growth with context', unique(growth.map(g => text(g, 'policy'))).map((label, i) => {
                const per = finite(growth.filter(g => text(g, 'policy') === label).map(g => num(g, 'bytes_per_token')));
                return { label, colour: i, low: least(per), mid: least(per), high: most(per) };
            }), { name: 'bytes per token', show: bytes })),
        table('Growth with context', 'policy|#from|#to|#bytes per token|against|#times fewer', growth.map(g =>
            [text(g, 'policy'), num(g, 'from'), num(g, 'to'), num(g, 'bytes_per_token'), text(g, 'against') || NONE,
             num(g, 'ratio')])),
        table('Bytes of a session', 'policy|#tokens|#sliding|#full|#drafter|#latents|#workspace|#recall|#mean KL, nats',
            rows.map(o => [text(o, 'policy'), num(o, 'tokens'), ...KV.map(key => asBytes(num(o, 'bytes', key))),
                           asBytes(num(o, 'bytes', 'workspace')), num(o, 'recall'), num(o, 'mean_kl')]))];
}

/* ---- sweep, kv ---- */

const errorCells = o => ['all', 'sliding', 'full'].map(key => num(o, 'rel_mse', key));
const ERRORS = '#relative error|#sliding layers|#full layers';

function layerPlot(rows, name) {
    return lines('Relative squared error of rebuilt or stored rows, by layer', rows.map(o => ({ name: name(o),
        points: objects(o, 'layers').map(l => ({ x: num(l, 'layer'), y: num(l, 'rel_mse') })) })),
        { x: 'layer', y: 'squared error / power', logY: true });
}

function sweep(r) {
    const rows = objects(r, 'rows'), line = (name, key) => ({ name, points: rows.map(o =>
        ({ x: num(o, 'alpha'), y: num(o, key) })) });
    return [Number.isFinite(num(r, 'knee')) ? el('p', null, `Knee at alpha ${figure(num(r, 'knee'))}.`) : null,
        table('By alpha, the share of true rows that is mixed in',
            `alpha|${ERRORS}|#recall|#mean KL, nats|#worst KL, nats`, rows.map(o => [figure(num(o, 'alpha')),
                ...errorCells(o), num(o, 'recall'), num(o, 'mean_kl'), num(o, 'worst_kl')])),
        figures(lines('Recall against alpha', [line('recall', 'recall')], { x: 'alpha', y: 'recall, share of codes' }),
            lines('KL against alpha', [line('mean', 'mean_kl'), line('worst', 'worst_kl')],
                { x: 'alpha', y: 'KL, nats', logY: true }),
            layerPlot(rows.slice(0, 1), o => `alpha ${figure(num(o, 'alpha'))}`))];
}

function kv(r) {
    const rows = objects(r, 'rows');
    return [table('By format', `format|#bits a value|${ERRORS}|#recall|#mean KL, nats|#worst KL, nats|#K/V and latents`,
            rows.map(o => [text(o, 'format'), num(o, 'bits'), ...errorCells(o), num(o, 'recall'), num(o, 'mean_kl'),
                           num(o, 'worst_kl'), asBytes(kvBytes(o))])),
        figures(klPlot(rows, o => text(o, 'format')), layerPlot(rows, o => text(o, 'format')))];
}

/* ---- training ---- */

function projection(r) {
    const stages = objects(r, 'stages'), curve = objects(r, 'curve');
    const at = key => curve.map(c => ({ x: num(c, 'step'), y: num(c, key) }));
    const parts = unique(curve.flatMap(c => Object.keys(object(c, 'parts')))).slice(0, 12);
    return [el('h3', null, 'Stages'),
        table('Each over the one before', `loss|#steps|#seconds|${ERRORS}|#mean KL, nats|#worst KL, nats`,
            stages.map(s => [text(s, 'loss'), num(s, 'steps'), num(s, 'seconds'), ...errorCells(s), num(s, 'mean_kl'),
                             num(s, 'worst_kl')])),
        table('Training', 'step|#loss|#learning rate|#gradient norm', curve.map(c => [figure(num(c, 'step')),
            num(c, 'loss'), num(c, 'lr'), num(c, 'grad_norm')])),
        figures(klPlot(stages, s => text(s, 'loss')),
            lines('Loss by step', [{ name: 'loss', points: at('loss') }], { x: 'step', y: 'loss', logY: true }),
            parts.length > 1 ? lines('Parts of the loss by step, each by its weight', parts.map(name => ({ name,
                points: curve.map(c => ({ x: num(c, 'step'), y: num(c, 'parts', name) * num(c, 'weights', name) })) })),
                { x: 'step', y: 'loss', logY: true }) : null,
            layerPlot(stages, s => text(s, 'loss')))];
}
