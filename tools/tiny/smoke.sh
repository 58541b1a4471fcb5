#!/bin/sh
# Every stage for a few seconds, to see that all of it runs before a long one is started.
cd "$(dirname "$0")/../.." || exit 1
export PYTHONUNBUFFERED=1 TINY_WORK="${TINY_WORK:-/tmp/tiny}"
OUT="${OUT:-$TINY_WORK/out}"; export OUT
t=tools/tiny
[ -e "$TINY_WORK/READY" ] || python3 $t/data.py > "$OUT/data.log" 2>&1 &
timeout 100 python3 $t/train_verifier.py --seconds "${1:-20}" --look 8 --fresh || echo "VERIFIER FAILED"
cp "$TINY_WORK/tokenizer.json" "$TINY_WORK/packages.json" "$OUT/"
timeout 60 python3 $t/generate.py --seconds 4 --batch 512 || echo "GENERATE FAILED"
timeout 90 python3 $t/train_drafter.py --seconds 12 --look 8 --samples 4 --every 50 --fresh || echo "DRAFTER FAILED"
python3 $t/export.py --from "$OUT" --to "$TINY_WORK/models" || echo "EXPORT FAILED"
timeout 60 python3 $t/evaluate.py --samples 4 --windows 4 --verifier "$TINY_WORK/models/verifier" \
  --drafter "$TINY_WORK/models/drafter" || echo "EVALUATE FAILED"
rm -f "$OUT"/*.safetensors
tail -5 "$OUT/data.log"
