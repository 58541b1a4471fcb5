/* main.js - the index of all reports with the gate's verdict, and for each report its section: what was
 * run, what the gate found, and its figures by kind.
 *
 * The program embeds {version, reports: [{path, kind, verdict, failure, findings, report}]}. */

const KINDS = { bench, accept, lossless, compare, needle, steps, sweep, kv, memory, projection, load, soak,
                chaos };

const fileName = path => path.split('/').filter(Boolean).pop() || path;

/* What random weights or a replayed trace gave is never shown without saying so. */
function labelsOf(report) {
    const labels = [];
    if (truth(report, 'model', 'synthetic')) labels.push('random weights');
    const trace = get(report, 'settings', 'accept_trace');
    if (trace !== undefined && trace !== null) labels.push('replayed acceptance');
    return labels;
}
const labelMarks = report => labelsOf(report).map(words => el('span', { class: 'label' }, words));

const violations = entry => objects(entry, 'findings');

/* ---- index ---- */

function indexRow(entry, number) {
    const codes = unique(violations(entry).map(f => text(f, 'code')));
    const verdict = text(entry, 'verdict'), failure = text(entry, 'failure');
    return el('tr', null,
        el('th', { scope: 'row' }, el('a', { href: `#r${number}`, class: 'file' }, fileName(text(entry, 'path'))),
            labelMarks(entry.report)),
        el('td', { 'data-column': 'kind' }, text(entry, 'kind') || 'unknown'),
        el('td', { 'data-column': 'gate', class: verdict },
            verdict, codes.length ? ` by ${codes.slice(0, 3).join(', ')}${codes.length > 3 ? ', \u2026' : ''}` : null),
        el('td', { 'data-column': 'run', class: failure ? 'failed' : '' }, failure ? `failed: ${failure}` : null),
        el('td', { 'data-column': 'device' }, text(entry.report, 'machine', 'device')),
        el('td', { 'data-column': 'date' }, text(entry.report, 'date').slice(0, 10)));
}

function index(entries, version) {
    const count = word => entries.filter(e => text(e, 'verdict') === word).length;
    const failed = entries.filter(e => text(e, 'failure')).length;
    const words = ['holds', 'refused']
        .map(word => `${count(word)} ${word === 'holds' && count(word) !== 1 ? 'hold' : word}`);
    return [el('h1', null, 'Kakeya reports'),
        el('p', { class: 'dim', id: 'summary' }, `${entries.length} report${entries.length === 1 ? '' : 's'}: `,
            words.join(', '), failed ? `; ${failed} of a run that failed` : null, `. Made by kakeya ${version}.`),
        el('p', { class: 'dim' }, 'A report holds when the program, asked for this page, computed its figures again ' +
            'from their rows and found every rule kept. An honest report of a run that failed holds, and is marked.'),
        el('nav', { 'aria-label': 'Reports', id: 'index' }, el('div', { class: 'wide index' }, el('table', null,
            el('caption', null, el('span', null, 'All reports')),
            el('thead', null, el('tr', null, ['report', 'kind', 'gate', 'run', 'device', 'date']
                .map(c => el('th', { scope: 'col' }, c)))),
            el('tbody', null, entries.map(indexRow)))))];
}

/* ---- over all reports ---- */

const machineName = r => (text(r, 'machine', 'device') === 'cpu' ? text(r, 'machine', 'cpu').split(' ').slice(0, 2).join(' ')
    : text(r, 'machine', 'device'));
const seriesName = r => joined(
    `${truth(r, 'model', 'synthetic') ? text(r, 'model', 'name') : fileName(text(r, 'model', 'source'))} ${text(r, 'model', 'weight_type')}`,
    `${figure(num(r, 'model', 'layers'))} layers`, machineName(r), ...labelsOf(r));

/* Plain decoding at each context that any report has, by model and machine; of several reports of
 * one context the newest counts.  Reports that the gate refuses are left out. */
function contextSeries(all) {
    const series = new Map(), held = all.filter(e => text(e, 'verdict') === 'holds' && text(e, 'kind') === 'bench');
    held.sort((a, b) => (text(a.report, 'date') < text(b.report, 'date') ? -1 : 1));
    for (const { report } of held) {
        const name = seriesName(report), points = series.get(name) || new Map();
        for (const c of objects(report, 'contexts')) {
            const rate = object(c, 'decode_tok_s');
            points.set(num(c, 'ctx'), { x: num(c, 'ctx'), y: num(rate, 'median'), low: num(rate, 'min'), high: num(rate, 'max') });
        }
        series.set(name, points);
    }
    return [...series].map(([name, points]) => ({ name, points: [...points.values()].sort((a, b) => a.x - b.x) }))
        .filter(s => s.points.length > 1);
}

function overview(all) {
    const drawn = figures(lines('Plain decoding by context: median (dot), slowest to fastest turn (line)',
        contextSeries(all), { x: 'tokens of context', y: 'tok/s', logX: true, logY: true }));
    return drawn ? el('section', { id: 'overview' }, el('h2', null, 'Over all reports'), drawn) : null;
}

/* ---- one report ---- */

function verdictParts(entry) {
    const found = violations(entry), failure = text(entry, 'failure'), verdict = text(entry, 'verdict');
    const says = { holds: 'Holds: figures were computed again from their rows, and every rule is kept.',
                   refused: 'Refused by the gate:' };
    return [failure ? el('p', { class: 'verdict failed' }, `Failed: ${failure}.`) : null,
        el('p', { class: `verdict ${verdict}` }, says[verdict] || verdict),
        found.length ? el('ul', { class: 'findings' }, found.slice(0, 40).map(f =>
            el('li', null, el('code', null, text(f, 'code')), ' ', text(f, 'text'))),
            found.length > 40 ? el('li', null, `${found.length - 40} more`) : null) : null];
}

const joined = (...words) => words.filter(w => w && !/^\u2013/.test(w)).join(', ');

function modelFacts(r) {
    const m = get(r, 'model');
    if (!isObject(m)) return typeof m === 'string' ? m : '';
    return joined(text(m, 'source') + (truth(m, 'synthetic') ? ' (random weights)' : ''), text(m, 'weight_type'),
        `${figure(num(m, 'layers'))} layers`, `${bytes(num(m, 'weight_bytes'))} of weights`, text(m, 'fingerprint'));
}

function facts(r) {
    const d = get(r, 'drafter'), p = get(r, 'projection'), machine = object(r, 'machine');
    const rows = [['model', modelFacts(r)],
        ['drafter', isObject(d) ? joined(`${figure(num(d, 'layers'))} layers`, `block ${figure(num(d, 'block'))}`,
            text(d, 'fingerprint')) : ''],
        ['projection', isObject(p) ? joined(`from ${text(p, 'source')}`, `rank ${figure(num(p, 'rank'))}`,
            text(p, 'fingerprint')) : ''],
        ['machine', joined(text(machine, 'cpu'), text(machine, 'device'), text(machine, 'isa'),
            isObject(r.machine) ? `${figure(num(machine, 'threads'))} threads` : '')],
        ['version', text(r, 'version')], ['date', text(r, 'date')]];
    const command = text(r, 'command').slice(0, 1000);
    return el('dl', null, rows.filter(([, words]) => words).map(([name, words]) =>
        [el('dt', null, name), el('dd', null, words.slice(0, 600))]),
        command ? [el('dt', null, 'command'), el('dd', null, el('code', null, command))] : null);
}

function section(entry, number) {
    const r = entry.report, path = text(entry, 'path'), kind = text(entry, 'kind');
    const box = el('section', { id: `r${number}`, 'aria-labelledby': `h${number}`, 'data-kind': kind,
                                'data-verdict': text(entry, 'verdict') },
        el('h2', { id: `h${number}` }, fileName(path), labelMarks(r)),
        el('p', { class: 'file dim' }, path), verdictParts(entry));
    if (!isObject(r)) return box;
    fill(box, [facts(r)]);
    try {
        fill(box, [Object.hasOwn(KINDS, kind) ? KINDS[kind](r) : generic('', r)]);
    } catch (e) {
        complain(`${path} could not be drawn: ${e.message}`);
    }
    if (isObject(get(r, 'settings'))) fill(box, [folded('Settings', () => generic('settings', r.settings))]);
    if (Object.hasOwn(KINDS, kind)) fill(box, [folded('All figures of the report', () => generic('', r))]);
    return fill(box, [el('p', null, el('a', { href: '#index' }, 'Back to the index'))]);
}

/* ---- the page ---- */

function draw() {
    const data = JSON.parse(document.getElementById('reports').textContent);
    const all = objects(data, 'reports'), page = document.getElementById('page');
    page.replaceChildren();
    fill(page, [index(all, text(data, 'version')), overview(all)]);
    const holder = el('div', { id: 'first' });
    page.append(holder);
    all.forEach((entry, i) => holder.append(section(entry, i)));
    document.documentElement.dataset.drawn = String(all.length);
}

window.addEventListener('error', e => complain(e.message));
draw();
