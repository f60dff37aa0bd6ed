"""Ask a trained model questions, with transformers alone: a checkpoint is an ordinary model folder.

python examples/ask.py runs/arithmetic/checkpoints/step-000120 "What is 47 + 85?"
"""

from __future__ import annotations

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

logging.disable_progress_bar()
folder, *questions = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
for question in questions:
    chat = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=64, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    print(f"  {question}  ->  {tokenizer.decode(answer, skip_special_tokens=True)}")
