"""Writes models/tiny from what training left: weights, config, tokenizer, generation settings.

usage: export.py --from FOLDER [--to models/tiny] [--tokenizer FILE]
"""
import argparse
import os
import shutil

from settings import BOS, DRAFTER, EOS, PAD, RESPONSE_OPEN, TURN_CLOSE, VERIFIER, work_folder, write_json


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--from", dest="source", required=True, help="folder with verifier.safetensors, drafter.safetensors")
    flags.add_argument("--to", default="models/tiny")
    flags.add_argument("--tokenizer", default=os.path.join(work_folder(), "tokenizer.json"))
    args = flags.parse_args()
    verifier, draft = os.path.join(args.to, "verifier"), os.path.join(args.to, "drafter")
    os.makedirs(verifier, exist_ok=True)
    shutil.copy(os.path.join(args.source, "verifier.safetensors"), os.path.join(verifier, "model.safetensors"))
    write_json(os.path.join(verifier, "config.json"), VERIFIER)
    write_json(os.path.join(verifier, "generation_config.json"), {
        "bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": [EOS, TURN_CLOSE, RESPONSE_OPEN],
        "do_sample": True, "temperature": 1.0, "top_k": 64, "top_p": 0.95})
    if os.path.abspath(args.tokenizer) != os.path.abspath(os.path.join(verifier, "tokenizer.json")):
        shutil.copy(args.tokenizer, os.path.join(verifier, "tokenizer.json"))
    if os.path.exists(os.path.join(args.source, "drafter.safetensors")):
        os.makedirs(draft, exist_ok=True)
        shutil.copy(os.path.join(args.source, "drafter.safetensors"), os.path.join(draft, "model.safetensors"))
        write_json(os.path.join(draft, "config.json"), DRAFTER)


if __name__ == "__main__":
    main()
