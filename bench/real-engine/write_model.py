"""Writes a small llama model with random weights: `write_model.py FILE`.

Its text means nothing; what matters is that a real server loads it and generates from it like from any other model. Two properties
are built in, because random weights alone would have neither:

- It writes words. Each word of WORDS is one token; bytes, which prompts fall back to, are never generated.
- It ends. The end-of-text token has a fixed chance at each step, so an answer without a limit has about MEAN_WORDS words.

Both need a bias on the output layer, which the architecture lacks. So channel 0 of the residual stream carries a constant: embeddings
set it, no layer writes to it, and the output layer multiplies it with the bias of each token.
"""

import sys
from math import log, sqrt

import gguf
import numpy as np

WORDS = """
a about after all and any are as at away back bank barge bell below bend boat bridge but by calm can clear cold cross dawn day deep down
drift each early east end even evening far fast field fish flow fog for ford from full gate gone grass green gull half has heavy high hill
house how hull in into is island its keep lamp land last late leaf left level light like line lock long low man many mill mist moon more
morning most mouth mud near net new next night no north not of off old on once one open or other out over own pace past path pier pole
quay quiet rain reed rest ripple rise river road roof rope round row run same sand sea see seven shade ship shore side slow small so some
song south stay steady stern still stone stream sun swan tall than that the then there these this tide till to town tree turn two under
until up upon wait wake walk wall warm was water way weir west wet wharf what wheel when where which white wide will willow wind with wood
year
""".split()

LAYERS, WIDTH, FEED_FORWARD, HEADS, KV_HEADS = 2, 256, 640, 4, 2
CONTEXT = 8192
MEAN_WORDS = 80
SEED = 20_26
SPREAD = 1.0  # standard deviation of a word's logit around its bias: how much the text depends on what came before
NEVER = -40.0  # a bias that leaves a token a chance of e^-40

BEGIN, END, UNKNOWN, TURN = "<s>", "</s>", "<unk>", "<|turn|>"
TEMPLATE = "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}{% endfor %}{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"


def vocabulary():
    """Tokens with their types and scores; SentencePiece spells a space as U+2581, and joins pieces of higher score first."""
    kind = gguf.TokenType
    entries = [(UNKNOWN, kind.UNKNOWN, 0.0), (BEGIN, kind.CONTROL, 0.0), (END, kind.CONTROL, 0.0), (TURN, kind.CONTROL, 0.0)]
    entries += [(f"<0x{byte:02X}>", kind.BYTE, 0.0) for byte in range(256)]
    entries += [("\u2581" + word, kind.NORMAL, -1.0) for word in WORDS]
    return entries


def index(entries, wanted):
    return [name for name, _, _ in entries].index(wanted)


def bias(entries):
    words = [kind == gguf.TokenType.NORMAL for _, kind, _ in entries]
    values = np.where(words, log((1 - 1 / MEAN_WORDS) / sum(words)), NEVER)
    # The words' own spread makes them likelier together by e^(SPREAD^2 / 2), as the mean of a log-normal.
    values[index(entries, END)] = log(1 / MEAN_WORDS) + SPREAD**2 / 2
    return values.astype(np.float32)


def tensors(entries):
    """Name and values of every tensor."""
    random = np.random.default_rng(SEED)
    head = WIDTH // HEADS

    def matrix(rows, columns, scale):
        return random.normal(0.0, scale / sqrt(columns), (rows, columns)).astype(np.float32)

    def silent(rows, columns):
        """A layer's way back to the residual stream: nothing to channel 0."""
        values = matrix(rows, columns, 1.0)
        values[0, :] = 0.0
        return values

    # Nine times the power of an embedding, and so of the same size after the last norm whatever the layers add (about twice an embedding).
    constant = 3 * sqrt(WIDTH)
    norm = sqrt(9 + 1 + 2)
    embedding = random.normal(0.0, 1.0, (len(entries), WIDTH)).astype(np.float32)
    embedding[:, 0] = constant
    yield "token_embd.weight", embedding
    ones = np.ones(WIDTH, np.float32)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", ones
        yield f"{block}.attn_q.weight", matrix(WIDTH, WIDTH, 1.0)
        yield f"{block}.attn_k.weight", matrix(head * KV_HEADS, WIDTH, 1.0)
        yield f"{block}.attn_v.weight", matrix(head * KV_HEADS, WIDTH, 1.0)
        yield f"{block}.attn_output.weight", silent(WIDTH, WIDTH)
        yield f"{block}.ffn_norm.weight", ones
        yield f"{block}.ffn_gate.weight", matrix(FEED_FORWARD, WIDTH, 1.0)
        yield f"{block}.ffn_up.weight", matrix(FEED_FORWARD, WIDTH, 1.0)
        yield f"{block}.ffn_down.weight", silent(WIDTH, FEED_FORWARD)
    yield "output_norm.weight", ones
    # Of that norm the constant is 9 parts in 12 and the rest 3.
    output = matrix(len(entries), WIDTH, SPREAD * norm / sqrt(3))
    output[index(entries, END), :] = 0.0
    output[:, 0] = bias(entries) * norm / constant
    yield "output.weight", output


def main(path):
    entries = vocabulary()
    model = gguf.GGUFWriter(path, "llama")
    model.add_name("river")
    model.add_block_count(LAYERS)
    model.add_context_length(CONTEXT)
    model.add_embedding_length(WIDTH)
    model.add_feed_forward_length(FEED_FORWARD)
    model.add_head_count(HEADS)
    model.add_head_count_kv(KV_HEADS)
    model.add_rope_dimension_count(WIDTH // HEADS)
    model.add_layer_norm_rms_eps(1e-5)
    model.add_vocab_size(len(entries))
    model.add_tokenizer_model("llama")
    model.add_token_list([name for name, _, _ in entries])
    model.add_token_types([kind for _, kind, _ in entries])
    model.add_token_scores([score for _, _, score in entries])
    model.add_unk_token_id(index(entries, UNKNOWN))
    model.add_bos_token_id(index(entries, BEGIN))
    model.add_eos_token_id(index(entries, END))
    model.add_add_bos_token(True)
    model.add_add_space_prefix(False)
    model.add_chat_template(TEMPLATE)
    for name, values in tensors(entries):
        model.add_tensor(name, values)
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()


if __name__ == "__main__":
    main(sys.argv[1])
