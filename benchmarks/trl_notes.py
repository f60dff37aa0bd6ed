"""What the comparison with TRL has to disclose, whatever it finds."""

NOTES = (
    "TRL repeats each prompt n times and reads it n times in one generate() call over the whole generation batch: no "
    "shared prefix, and finished rows stay in the batch until the longest is done. winnow reads each prompt once and "
    "lets finished rows leave.",
    "TRL computes the entropy over the full vocabulary in every training forward; winnow reports the entropy from the "
    "sampled log-probs.",
    "TRL pads prompts on the left and completions on the right of one rectangle; winnow reads a prompt once for its "
    "rollouts where that saves a tenth of the tokens, under a mask by position; else it sorts rows by length and pads "
    "on the right without a mask.",
    "TRL's step holds the Hugging Face Trainer's loop; winnow's holds its logbook: a row per rollout, written to disk.",
    "winnow's engine returns the log-probs of what it sampled, TRL's generate() does not; winnow's are computed within "
    "its generation phase.",
    "Both sides: the same weights, prompts, order of prompts, threads, float32, AdamW (fused), clipping at 1, constant "
    "rate, one optimizer update per generation, no reference model. Rewards are judged in the trainer's process on "
    "both sides (verify.workers = 0), so that the trainers are measured and not the verifier.",
    "Timed steps use a hash of the completion's tokens as reward: no group is flat, so winnow drops no row.",
    "Fixed lengths: TRL forbids the end of sequence by min_new_tokens; winnow's engine is given no stop token.",
    "TRL's micro-batch is the fastest of those tried, per point; winnow's is 4,096 tokens throughout.",
    "On a CPU the update is a far larger share of the step than on a GPU with vLLM, which flatters PODS; ratios do not "
    "transfer. Phase seconds stand beside every ratio.",
)
