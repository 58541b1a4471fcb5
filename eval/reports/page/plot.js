/* plot.js - four plots as SVG: ranges, stacked bars, lines, and a grid of shares.
 *
 * Coordinates are units of a drawing 400 wide that scales with the page, so that labels stay legible
 * on a phone.  Values that are not finite are left out, scales never have no width, and every axis
 * says what it is and in which unit. */

const WIDTH = 400, RIGHT = 18, ROW = 20, COLOURS = 6, MOST_TICKS = 7, MOST_ROWS = 60,
    MOST_POINTS = 1000;

function svg(name, attributes, ...children) {
    const e = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes || {}))
        e.setAttribute(key, typeof value === 'number' ? String(Math.round(value * 100) / 100) : value);
    return fill(e, children);
}

const label = (x, y, how, words) => svg('text', { x, y, class: how }, words);
const line = (x1, y1, x2, y2, how) => svg('line', { x1, y1, x2, y2, class: how });

function plotFigure(title, height, parts, legend) {
    return el('figure', null, el('figcaption', null, title),
        svg('svg', { class: 'plot', viewBox: `0 0 ${WIDTH} ${Math.ceil(height)}`, role: 'img',
                     'aria-label': title }, parts), legend);
}

/* Names with the colours and dashes of their lines. */
function legendOf(names, mark) {
    return el('ul', { class: 'legend' }, names.map((name, i) =>
        el('li', null, svg('svg', { viewBox: '0 0 24 10', class: `s${i % COLOURS}`, 'aria-hidden': 'true' },
            mark(i)), name)));
}
const square = () => svg('rect', { x: 6, y: 0, width: 10, height: 10, class: 'fill' });
/* Dashes differ too, so that a line on top of another leaves it visible. */
const dash = i => `line d${(i + Math.floor(i / COLOURS)) % 3}`;
const stroke = i => svg('line', { x1: 0, y1: 5, x2: 24, y2: 5, class: dash(i) });

/* ---- scales ---- */

/* Math.min takes only so many arguments. */
const least = values => values.reduce((a, b) => (b < a ? b : a), Infinity);
const most = values => values.reduce((a, b) => (b > a ? b : a), -Infinity);

/* The step between ticks: 1, 2 or 5 times a power of ten. */
function niceStep(width, ticks = MOST_TICKS) {
    const raw = width / (ticks - 2), ten = 10 ** Math.floor(Math.log10(raw)), f = raw / ten;
    return ten * (f <= 1 ? 1 : f <= 2 ? 2 : f <= 5 ? 5 : 10);
}

/* from, to: where the ends of the scale lie in the drawing. */
function linearScale(values, from, to, count) {
    let low = Math.min(0, least(values)), high = Math.max(low, most(values));
    if (!(high > low)) high = low + (low === 0 ? 1 : Math.abs(low));
    const step = niceStep(high - low, count);
    high = step * Math.ceil(high / step - 1e-9);
    if (low < 0) low = step * Math.floor(low / step + 1e-9);
    const ticks = [];
    for (let i = 0; low + i * step <= high + step / 2 && i < 16; i++) ticks.push(low + i * step);
    return { ticks: ticks.map(t => (Math.abs(t) < step * 1e-9 ? 0 : t)), log: false,
             at: x => from + (to - from) * Math.min(1, Math.max(0, (x - low) / (high - low))) };
}

/* Tens, with 2 and 5 between where there are few. */
function logScale(values, from, to) {
    const positive = values.filter(v => v > 0);
    const low = positive.length ? least(positive) : 1, high = positive.length ? most(positive) : 10;
    const tens = Math.log10(high / low), factors = tens < 2.2 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(tens / (MOST_TICKS - 1)));
    const all = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
        if (factors.length > 1 || (p - Math.floor(Math.log10(low))) % every === 0)
            for (const f of factors) all.push(f * 10 ** p);
    const below = all.filter(t => t <= low * 1.0001).pop() || low;
    const above = all.find(t => t >= high * 0.9999 && t > below) || high * 10;
    return { ticks: all.filter(t => t >= below && t <= above), log: true,
             at: x => from + (to - from) *
                 Math.min(1, Math.max(0, Math.log(Math.max(x, below) / below) / Math.log(above / below))) };
}

const finite = values => values.filter(Number.isFinite);
/* A scale for lengths of context and the like, which double from one to the next. */
const wideRange = values => least(values) > 0 && most(values) / least(values) >= 30;

/* ---- one under the other: ranges and bars ---- */

const leftOf = rows => Math.min(168, 16 + 6.3 * Math.max(4, ...rows.map(r => r.label.length)));
const shorten = (words, width) => {
    const fits = Math.floor((width - 12) / 6.1);
    return words.length > fits ? `${words.slice(0, fits - 1)}\u2026` : words;
};

/* Ticks of a bottom axis: those whose labels have the space. */
function tickLabels(scale, y, show) {
    let end = -Infinity;
    return scale.ticks.map(t => {
        const words = show(t), half = 3.3 * words.length;
        const x = Math.min(scale.at(t), WIDTH - half);
        if (x - half < end + 4) return null;
        end = x + half;
        return label(x, y, 'mid tick', words);
    });
}

function bottomAxis(scale, top, bottom, from, to, name, show = figure) {
    return [scale.ticks.map(t => line(scale.at(t), top, scale.at(t), bottom, 'grid')),
            tickLabels(scale, bottom + 14, show),
            line(from, bottom, to, bottom, 'frame'),
            label((from + to) / 2, bottom + 30, 'mid axis', name)];
}

/* rows: {label, colour, low, mid, high}: a line from low to high with a dot at mid.
 * how: {log, mark (a value to compare with), name (of the axis, with its unit), show}. */
function ranges(title, rows, how) {
    rows = rows.filter(r => Number.isFinite(r.mid) && (!how.log || r.mid > 0)).slice(0, MOST_ROWS);
    if (rows.length === 0) return null;
    const left = leftOf(rows), right = WIDTH - RIGHT, bottom = 8 + rows.length * ROW;
    const values = finite([...rows.flatMap(r => [r.low, r.mid, r.high]), how.mark]);
    const scale = how.log ? logScale(values, left, right) : linearScale(values, left, right);
    const parts = [bottomAxis(scale, 4, bottom, left, right, how.name, how.show)];
    if (Number.isFinite(how.mark)) parts.push(line(scale.at(how.mark), 4, scale.at(how.mark), bottom, 'mark'));
    rows.forEach((r, i) => {
        const y = 8 + (i + 0.5) * ROW;
        const low = Number.isFinite(r.low) ? r.low : r.mid, high = Number.isFinite(r.high) ? r.high : r.mid;
        parts.push(label(left - 8, y + 4, 'end', shorten(r.label, left)),
            svg('g', { class: `s${(r.colour || 0) % COLOURS}` },
                svg('title', null, `${r.label}: ${figure(r.mid)} (${figure(low)} to ${figure(high)})`),
                line(scale.at(low), y, scale.at(high), y, 'range'),
                svg('circle', { cx: scale.at(r.mid), cy: y, r: 4, class: 'dot' })));
    });
    return plotFigure(title, bottom + 38, parts);
}

/* rows: {label, parts: [values]}; names: of the parts. */
function bars(title, rows, names, how) {
    rows = rows.slice(0, MOST_ROWS);
    const sums = rows.map(r => r.parts.reduce((a, b) => a + (b > 0 ? b : 0), 0));
    if (!sums.some(s => s > 0)) return null;
    const left = leftOf(rows), right = WIDTH - RIGHT, bottom = 8 + rows.length * ROW;
    const scale = linearScale(sums, left, right);
    const parts = [bottomAxis(scale, 4, bottom, left, right, how.name, how.show)];
    rows.forEach((r, i) => {
        const y = 8 + (i + 0.5) * ROW;
        let sum = 0;
        parts.push(label(left - 8, y + 4, 'end', shorten(r.label, left)));
        r.parts.forEach((part, k) => {
            if (!(part > 0)) return;
            const from = scale.at(sum), to = scale.at(sum += part);
            parts.push(svg('rect', { x: from, y: y - 6.5, width: Math.max(0.5, to - from), height: 13,
                                     class: `fill s${k % COLOURS}` },
                svg('title', null, `${r.label}, ${names[k]}: ${figure(part)}`)));
        });
    });
    return plotFigure(title, bottom + 38, parts, names.length > 1 ? legendOf(names, square) : null);
}

/* ---- lines ---- */

/* series: {name, points: [{x, y, low, high}]}.
 * how: {x, y (names of the axes, with units), logX, logY, showY, fromZero (of y)}. */
function lines(title, series, how) {
    const usable = p => Number.isFinite(p.x) && Number.isFinite(p.y) && (!how.logY || p.y > 0) &&
        (!how.logX || p.x > 0);
    /* A line has no more points than the drawing can show. */
    const thin = all => all.filter((_, i) => i % Math.ceil(all.length / MOST_POINTS) === 0);
    series = series.map(s => ({ name: s.name, points: thin(s.points.filter(usable)) }))
        .filter(s => s.points.length > 0).slice(0, 18);
    const points = series.flatMap(s => s.points);
    if (points.length < 2) return null;
    const left = 70, top = 8, bottom = 196, right = WIDTH - RIGHT;
    const xs = points.map(p => p.x), ys = finite([how.fromZero ? 0 : NaN, ...points.flatMap(p => [p.y, p.low, p.high])]);
    const sx = how.logX ? logScale(xs, left, right) : linearScale(xs, left, right, 6);
    const sy = how.logY ? logScale(ys, bottom, top) : linearScale(ys, bottom, top);
    const show = how.showY || figure;
    const parts = [
        sy.ticks.map(t => [line(left, sy.at(t), right, sy.at(t), 'grid'),
                           label(left - 6, sy.at(t) + 4, 'end tick', show(t))]),
        sx.ticks.map(t => line(sx.at(t), bottom, sx.at(t), bottom + 4, 'frame')),
        tickLabels(sx, bottom + 17, figure),
        line(left, bottom, right, bottom, 'frame'), line(left, top, left, bottom, 'frame'),
        label((left + right) / 2, bottom + 34, 'mid axis', how.x),
        svg('text', { class: 'mid axis', transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)` }, how.y),
    ];
    series.forEach((s, i) => parts.push(svg('g', { class: `s${i % COLOURS}` }, svg('title', null, s.name),
        s.points.map(p => (p.high > p.low ? line(sx.at(p.x), sy.at(p.low), sx.at(p.x), sy.at(p.high), 'range')
            : null)),
        svg('polyline', { class: dash(i),
                          points: s.points.map(p => `${sx.at(p.x).toFixed(1)},${sy.at(p.y).toFixed(1)}`).join(' ') }),
        s.points.length > 40 ? null : s.points.map(p =>
            svg('circle', { cx: sx.at(p.x), cy: sy.at(p.y), r: 2.8, class: 'dot' },
                svg('title', null, `${s.name}: ${figure(p.x)}, ${show(p.y)}`))))));
    return plotFigure(title, bottom + 42, parts, series.length > 1 ? legendOf(series.map(s => s.name), stroke) : null);
}

/* ---- a grid of shares ---- */

/* rows: {label, shares: [0 to 1, or NaN for a cell without samples]}. */
function heat(title, columns, rows, how) {
    if (rows.length === 0) return null;
    const left = 82, top = 4, cell = 23, bottom = top + rows.length * cell;
    const width = (WIDTH - RIGHT - left) / columns.length;
    const parts = [];
    rows.slice(0, MOST_ROWS).forEach((r, i) => {
        const y = top + i * cell;
        parts.push(label(left - 8, y + cell / 2 + 4, 'end tick', r.label));
        r.shares.forEach((share, c) => {
            const box = { x: left + c * width + 1, y: y + 1, width: width - 2, height: cell - 2 };
            if (!(share >= 0)) return void parts.push(svg('rect', { ...box, class: 'none' }));
            const full = Math.min(1, share);
            parts.push(svg('rect', { ...box, class: 'heat', 'fill-opacity': 0.06 + 0.84 * full }),
                label(left + (c + 0.5) * width, y + cell / 2 + 4, full > 0.55 ? 'mid on' : 'mid',
                    String(Math.round(100 * full))));
        });
    });
    parts.push(columns.map((c, i) => label(left + (i + 0.5) * width, bottom + 14, 'mid tick', c)),
        label((left + WIDTH - RIGHT) / 2, bottom + 30, 'mid axis', how.x),
        label(left - 8, bottom + 14, 'end axis', how.y));
    return plotFigure(title, bottom + 38, parts);
}

const figures = (...plots) => {
    const drawn = plots.flat().filter(Boolean);
    return drawn.length ? el('div', { class: 'figures' }, drawn) : null;
};
