/* text.js - elements, numbers, tables, and how members of a report are read.
 *
 * A report may hold anything.  What it says reaches the page as text nodes and attribute values
 * alone, never as markup, and every reader below gives a default for a member of another type. */
'use strict';

/* ---- elements ---- */

/* A child may be a node, a text, a number, or null for none. */
function fill(parent, children) {
    for (const child of children.flat(Infinity)) {
        if (child === null || child === undefined) continue;
        parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
    return parent;
}

function el(name, attributes, ...children) {
    const e = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) e.setAttribute(key, String(value));
    return fill(e, children);
}

/* Shown at the top of the page, and counted for whoever tests it. */
function complain(text) {
    const box = document.getElementById('errors');
    box.hidden = false;
    box.append(text, document.createElement('br'));
    box.dataset.count = String(Number(box.dataset.count || 0) + 1);
}

/* ---- members of a report ---- */

const isObject = v => typeof v === 'object' && v !== null && !Array.isArray(v);

function get(o, ...keys) {
    for (const key of keys) {
        if (!isObject(o) || !Object.hasOwn(o, key)) return undefined;
        o = o[key];
    }
    return o;
}
const object = (o, ...keys) => { const v = get(o, ...keys); return isObject(v) ? v : {}; };
const list = (o, ...keys) => { const v = get(o, ...keys); return Array.isArray(v) ? v : []; };
const objects = (o, ...keys) => list(o, ...keys).filter(isObject);
const text = (o, ...keys) => { const v = get(o, ...keys); return typeof v === 'string' ? v : ''; };
const truth = (o, ...keys) => get(o, ...keys) === true;
/* NaN: not a number that can be drawn. */
function num(o, ...keys) {
    const v = get(o, ...keys);
    return typeof v === 'number' && Number.isFinite(v) && Math.abs(v) < 1e300 ? v : NaN;
}
const entries = (o, ...keys) => Object.entries(object(o, ...keys)).filter(([, v]) => isObject(v));
const unique = values => [...new Set(values)];

/* ---- numbers as a reader wants them ---- */

const NONE = '\u2013';

function figure(x) {
    if (!Number.isFinite(x)) return NONE;
    const size = Math.abs(Number(x.toPrecision(4)));
    if (size >= 1e15 || (size > 0 && size < 1e-4)) return String(Number(x.toPrecision(4)).toExponential());
    if (size >= 1000) return Math.round(x).toLocaleString('en-US');
    return String(Number(x.toPrecision(4)));
}

function bytes(x) {
    const units = ['B', 'kB', 'MB', 'GB', 'TB'];
    let unit = 0;
    if (!Number.isFinite(x)) return NONE;
    while (Math.abs(x) >= 999.5 && unit < units.length - 1) x /= 1000, unit++;
    return `${Number(x.toPrecision(3))} ${units[unit]}`;
}

const percent = x => (Number.isFinite(x) ? `${figure(100 * x)} %` : NONE);
const yesNo = v => (v === true ? 'yes' : v === false ? 'no' : NONE);

/* ---- tables ---- */

/* A cell is a text, a number, {value, show, kind} or a node. */
const shown = (value, show) => ({ value, show: show(value) });
const asBytes = x => shown(x, bytes);
const asShare = x => shown(x, percent);
const withheld = reason => ({ show: `withheld: ${reason || 'no reason is given'}`, kind: 'withheld' });

function cellOf(value, column, header) {
    const cell = header ? el('th', { scope: 'row' }) : el('td');
    if (column.n && !header) cell.classList.add('n');
    if (column.name) cell.dataset.column = column.name;
    if (typeof value === 'number') value = shown(value, figure);
    if (value instanceof Node || typeof value === 'string') return fill(cell, [value]);
    if (!value) return fill(cell, [NONE]);
    if (value.kind) cell.classList.add(value.kind);
    /* The value with all of its digits, for a reader who hovers and for the tests. */
    if (Number.isFinite(value.value)) {
        cell.dataset.value = String(value.value);
        cell.title = String(value.value);
    }
    return fill(cell, [value.show]);
}

/* columns: texts with a '|' between; a column of numbers begins with '#'.  The first cell of a row is
 * its header.  Rows beyond `most` are counted and not shown. */
function table(caption, columns, rows, most = 400) {
    const heads = columns.split('|').map(c => ({ name: c.replace(/^#/, ''), n: c.startsWith('#') }));
    if (rows.length === 0) return null;
    const body = rows.slice(0, most).map(row =>
        el('tr', null, row.map((value, i) => cellOf(value, heads[i] || {}, i === 0))));
    if (rows.length > most)
        body.push(el('tr', null, el('td', { colspan: heads.length, class: 'dim' },
            `${figure(rows.length - most)} more rows are in the report`)));
    return el('div', { class: 'wide', tabindex: 0, role: 'region', 'aria-label': caption },
        el('table', null, el('caption', null, el('span', null, caption)),
            el('thead', null, el('tr', null, heads.map(h =>
                el('th', h.n ? { scope: 'col', class: 'n' } : { scope: 'col' }, h.name)))),
            el('tbody', null, body)));
}

/* {median, min, max, n} as four cells. */
const spreadCells = s => [num(s, 'median'), num(s, 'min'), num(s, 'max'), num(s, 'n')];

/* Made when it is opened: most readers never do. */
function folded(summary, make) {
    const box = el('details', null, el('summary', null, summary));
    box.addEventListener('toggle', () => {
        if (box.open && box.childElementCount === 1) fill(box, [make()]);
    });
    return box;
}

/* ---- any JSON: every scalar in a table, every list of objects in one of its own ---- */

const isScalar = v => v === null || typeof v !== 'object';
const isScalarList = v => Array.isArray(v) && v.every(isScalar);

function scalarCell(v) {
    if (typeof v === 'number') return v;
    if (v === null || v === undefined) return NONE;
    return { show: isScalarList(v) ? v.slice(0, 40).map(String).join(', ') : String(v).slice(0, 600),
             kind: 'text' };
}

function generic(name, v, depth = 0) {
    if (depth > 8) return [];
    if (Array.isArray(v)) {
        const rows = v.filter(isObject);
        const keys = unique(rows.flatMap(r => Object.keys(r).filter(k => isScalar(r[k])))).slice(0, 24);
        const parts = keys.length === 0 ? [] : [table(name, '|' + keys.map(k => `#${k}`).join('|'),
            rows.map((r, i) => [String(i), ...keys.map(k => (isScalar(r[k]) ? scalarCell(r[k]) : NONE))]), 200)];
        for (const [i, r] of rows.slice(0, 40).entries())
            for (const key of Object.keys(r))
                if (!isScalar(r[key])) parts.push(generic(`${name}[${i}].${key}`, r[key], depth + 1));
        if (isScalarList(v) && v.length) parts.push(table(name, 'member|value', [[name, scalarCell(v)]]));
        return parts;
    }
    if (!isObject(v)) return [];
    const flat = Object.entries(v).filter(([, x]) => isScalar(x) || isScalarList(x));
    const parts = [table(name, 'member|#value', flat.map(([k, x]) => [k, scalarCell(x)]))];
    for (const [k, x] of Object.entries(v))
        if (!isScalar(x) && !isScalarList(x)) parts.push(generic(name ? `${name}.${k}` : k, x, depth + 1));
    return parts;
}
