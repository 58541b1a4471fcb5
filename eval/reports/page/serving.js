/* serving.js - a server measured from outside: rates of streams, hours under load by buckets of time,
 * and restarts and answers under faults. */

function load(r) {
    const arms = objects(r, 'arms');
    const label = a => `${text(a, 'arm')} ${text(a, 'spec')}, ${figure(num(a, 'ctx'))} tokens, x${figure(num(a, 'streams'))}`;
    const kinds = unique(arms.map(a => text(a, 'arm')));
    const mixed = objects(r, 'mixed', 'rows');
    return [checkParts(r), figures(
        ranges('Tokens per second of all streams: of all turns (dot), slowest to fastest turn (line)',
            arms.map(a => ({ label: label(a), colour: kinds.indexOf(text(a, 'arm')), low: num(a, 'tok_s_spread', 'min'),
                             mid: num(a, 'tok_s'), high: num(a, 'tok_s_spread', 'max') })), { name: 'tok/s' }),
        lines('First token of requests of mixed lengths', [{ name: 'requests', points: mixed.map((o, i) =>
            ({ x: i + 1, y: 1e3 * num(o, 'first_s') })) }], { x: 'request', y: 'ms' }))];
}

function soak(r) {
    const buckets = objects(r, 'buckets');
    const over = (name, key, by = 1) => ({ name, points: buckets.map(b =>
        ({ x: num(b, 'from_s') / 60, y: by * num(b, key) })) });
    const x = 'minutes since the start';
    return [checkParts(r), figures(
        lines('Memory', [over('resident', 'resident'), over('K/V', 'kv')], { x, y: 'bytes', showY: bytes }),
        lines('Latency of a turn', [over('median', 'latency_median_s', 1e3), over('5 %', 'latency_p05_s', 1e3),
                                    over('95 %', 'latency_p95_s', 1e3)], { x, y: 'ms' }),
        lines('First token of a turn', [over('median', 'first_median_s', 1e3)], { x, y: 'ms' }))];
}

function chaos(r) {
    const kills = objects(r, 'kills');
    const over = (name, key, by) => ({ name, points: kills.map((k, i) => ({ x: i + 1, y: by * num(k, key) })) });
    const counts = (what, ...keys) => Object.keys(object(r, ...keys)).map(key =>
        ({ label: `${what} ${key}`, parts: [num(r, ...keys, key)] }));
    return [checkParts(r), figures(
        lines('Restart after a kill', [over('until it is ready', 'ready_s', 1e3)], { x: 'kill', y: 'ms' }),
        lines('Calls answered before a kill', [over('calls', 'turns', 1)], { x: 'kill', y: 'calls' }),
        bars('Malformed requests: over HTTP by status, over gRPC by what is wrong', [
            ...counts('HTTP', 'malformed', 'statuses'), ...counts('gRPC', 'malformed_grpc', 'ways')],
            ['requests'], { name: 'requests' }))];
}
