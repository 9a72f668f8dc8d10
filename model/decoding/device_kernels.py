"""Kernels of a decode step: one new token a row. Imports Triton, so it is imported on a GPU alone.

A token through a small model is a hundred products of a matrix with a vector, each two or three microseconds of
reading, each waiting for the one before: what counts is that memory is never idle in between. So norms, residuals and
ReLU² ride on the products, and with OVERLAP every kernel is started while the one before still runs (programmatic
dependent launch), asks for its weights at once, and waits only then for its input. Every kernel waits, so the end of
one means the end of all before it. What a step does not write (weights, older keys, positions) may be read before.

The residual stream is float32, with a copy in the weights' dtype beside it for the products to read; sums are float32.
Queries and keys are normed, so no score exceeds √D: exp(score - √D) neither overflows nor vanishes, softmax needs no
maximum, and the parts of a split attention just add up. Shapes: B rows, C width, H heads, D head dimension,
V vocabulary, S slots of the cache.
"""

import triton
import triton.language as tl

EPSILON = tl.constexpr(2.0**-23)  # as in model.gpt


@triton.jit
def _begin(OVERLAP: tl.constexpr):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _wait(OVERLAP: tl.constexpr):
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


@triton.jit
def _token(ids, dictated, row):
    """The id that is fed: what is dictated, or else what was drawn."""
    said = tl.load(dictated + row)
    return tl.where(said >= 0, said, tl.load(ids + row))


@triton.jit
def embed(
    table, ids, dictated, residual_scale, skip_scale, start, stream, x, C, BLOCK: tl.constexpr, OVERLAP: tl.constexpr
):  # fmt: skip
    """start (B, C): the normed embedding; stream and its copy x (B, C) as layer 0 reads it. The first of a step: it is
    never started before what came before has ended."""
    _begin(OVERLAP)
    row = tl.program_id(0)
    token = _token(ids, dictated, row).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < C
    e = tl.load(table + token * C + column, mask=inside, other=0.0).to(tl.float32)
    e *= tl.rsqrt(tl.sum(e * e, axis=0) / C + EPSILON)
    tl.store(start + row * C + column, e, mask=inside)
    e *= tl.load(residual_scale).to(tl.float32) + tl.load(skip_scale).to(tl.float32)
    tl.store(stream + row * C + column, e, mask=inside)
    tl.store(x + row * C + column, e, mask=inside)


@triton.jit(do_not_specialize=["next_layer"])
def product(
    weight, scale, x, out, stream, start, residual_scale, skip_scale, next_layer, gate_weight, gates, softcap, N,
    K: tl.constexpr, KV: tl.constexpr, CHANNELS: tl.constexpr, NORM: tl.constexpr, RELU2: tl.constexpr,
    ADD: tl.constexpr, MIX: tl.constexpr, CAP: tl.constexpr, GATE: tl.constexpr, SCALED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """out (N) = weight (N, K) times x (K), for a single row of the batch; `scale` (N) where the weight is in 8 bits.

    NORM: x is normed first; GATE: one more program computes the value gates (H_kv). RELU2, CAP: applied to the result.
    ADD: the result is added to the stream; MIX: the sum becomes the stream as the next layer reads it; `out` gets the
    copy of it.
    """
    _begin(OVERLAP)
    program = tl.program_id(0)
    row = program * ROWS + tl.arange(0, ROWS)
    there = row < N
    tiles = ()
    for at in tl.static_range(0, K, BLOCK):
        column = at + tl.arange(0, BLOCK)
        place = weight + row[:, None].to(tl.int64) * K + column[None, :]
        mask = there[:, None] & (column < K)[None, :]
        tiles = tiles + (tl.load(place, mask=mask, other=0.0, eviction_policy="evict_first"),)  # noqa: RUF005
    if SCALED:
        unscale = tl.load(scale + row, mask=there, other=0.0)
    if MIX:
        keep = tl.load(residual_scale + next_layer).to(tl.float32)
        skip = tl.load(skip_scale + next_layer).to(tl.float32)
    if GATE:
        head, channel = tl.arange(0, triton.next_power_of_2(KV)), tl.arange(0, triton.next_power_of_2(CHANNELS))
        last = program == tl.num_programs(0) - 1
        mask = (head < KV)[:, None] & (channel < CHANNELS)[None, :] & last
        gate = tl.load(gate_weight + head[:, None] * CHANNELS + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    _wait(OVERLAP)

    # All loads before the first sum, so that their latencies do not add up.
    values = ()
    for at in tl.static_range(0, K, BLOCK):
        column = at + tl.arange(0, BLOCK)
        values = values + (tl.load(x + column, mask=column < K, other=0.0).to(tl.float32),)  # noqa: RUF005
    if ADD:
        held = tl.load(stream + row, mask=there, other=0.0)
    if MIX:
        begun = tl.load(start + row, mask=there, other=0.0)
    if GATE:
        narrow = tl.load(x + channel, mask=(channel < CHANNELS) & last, other=0.0).to(tl.float32)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for index in tl.static_range((K + BLOCK - 1) // BLOCK):
        sums += tiles[index].to(tl.float32) * values[index][None, :]
        if NORM:
            squares += values[index] * values[index]
    result = tl.sum(sums, axis=1)
    if SCALED:
        result *= unscale
    if NORM:
        inverse = tl.rsqrt(tl.sum(squares, axis=0) / K + EPSILON)
        result *= inverse
    if RELU2:
        result = tl.maximum(result, 0.0)
        result *= result
    if CAP:
        result = softcap * (1 - 2 / (1 + tl.exp(2 * result / softcap)))
    if ADD:
        result += held
        if MIX:
            result = keep * result + skip * begun
        tl.store(stream + row, result, mask=there)
    tl.store(out + row, result, mask=there)
    if GATE:
        tl.store(gates + head, tl.sum(gate * narrow[None, :], axis=1) * inverse, mask=(head < KV) & last)


@triton.jit
def _turned(x, cos, sin, HALF: tl.constexpr):
    """A head's halves, turned by RoPE and normed."""
    half = tl.arange(0, HALF)
    first, second = tl.load(x + half).to(tl.float32), tl.load(x + HALF + half).to(tl.float32)
    turned_first, turned_second = first * cos - second * sin, first * sin + second * cos
    squares = tl.sum(turned_first * turned_first + turned_second * turned_second, axis=0)
    inverse = tl.rsqrt(squares / (2 * HALF) + EPSILON)
    return turned_first * inverse, turned_second * inverse


@triton.jit
def _load_block(keys, values, slot, seen, HALF: tl.constexpr):
    """Both halves of the keys in these slots, and their values."""
    half, dim = tl.arange(0, HALF), tl.arange(0, 2 * HALF)
    place, mask = slot[:, None] * (2 * HALF), seen[:, None]
    k_first = tl.load(keys + place + half[None, :], mask=mask, other=0.0)
    k_second = tl.load(keys + place + HALF + half[None, :], mask=mask, other=0.0)
    return k_first, k_second, tl.load(values + place + dim[None, :], mask=mask, other=0.0)


@triton.jit
def _weights(q_first, q_second, k_first, k_second, seen, HALF: tl.constexpr):
    """exp(score - √D) of a block's keys."""
    products = k_first.to(tl.float32) * q_first[None, :] + k_second.to(tl.float32) * q_second[None, :]
    return tl.where(seen, tl.exp(tl.sum(products, axis=1) - (2 * HALF) ** 0.5), 0.0)


@triton.jit
def attend(
    qkv, gates, table, ids, dictated, positions, cos, sin, keys, values, parts, totals, tickets, y, window, slots,
    row_stride, H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, GATE: tl.constexpr, KEYS: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One layer's attention, y (B, H × D): a program a head, chunk of KEYS older keys and row; one without keys ends at
    once. Parts (B, CHUNKS, H × D) and the totals of their weights (B, CHUNKS, H) are added up by the program that draws
    the last of a head's tickets (B, H). The first chunk has the new key too, and stores it and its value.

    qkv (B, (H + 2 H_kv) × D) raw; gates (B, H_kv) before the sigmoid; table (V, H_kv × D): the value embedding; keys
    and values (B, H_kv, S, D).
    """
    _begin(OVERLAP)
    head, chunk, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    HALF: tl.constexpr = D // 2
    half, dim = tl.arange(0, HALF), tl.arange(0, D)
    kv = head // (H // KV)
    at = tl.load(positions + row).to(tl.int32)
    oldest = tl.maximum(at + 1 - window, 0)
    working = tl.maximum((at - oldest + KEYS - 1) // KEYS, 1)
    if chunk >= working:
        return
    keys += row.to(tl.int64) * row_stride + kv * slots * D
    values += row.to(tl.int64) * row_stride + kv * slots * D
    slot = oldest + chunk * KEYS + tl.arange(0, BLOCK)
    seen = slot < at
    k_first, k_second, v = _load_block(keys, values, slot, seen, HALF)
    turn_cos = tl.load(cos + at * HALF + half).to(tl.float32)
    turn_sin = tl.load(sin + at * HALF + half).to(tl.float32)
    if GATE:
        token = _token(ids, dictated, row).to(tl.int64)
        extra = tl.load(table + token * (KV * D) + kv * D + dim).to(tl.float32)
    _wait(OVERLAP)

    qkv += row * (H + 2 * KV) * D
    q_first, q_second = _turned(qkv + head * D, turn_cos, turn_sin, HALF)
    q_first *= D**-0.5
    q_second *= D**-0.5
    own_first, own_second = _turned(qkv + (H + kv) * D, turn_cos, turn_sin, HALF)
    own_first, own_second = own_first.to(k_first.dtype), own_second.to(k_first.dtype)
    own_v = tl.load(qkv + (H + KV + kv) * D + dim).to(tl.float32)
    if GATE:
        own_v += 2 * tl.sigmoid(tl.load(gates + row * KV + kv)) * extra
    own_v = own_v.to(v.dtype)
    if (chunk == 0) & (head % (H // KV) == 0):
        tl.store(keys + at * D + half, own_first)
        tl.store(keys + at * D + HALF + half, own_second)
        tl.store(values + at * D + dim, own_v)

    weight = _weights(q_first, q_second, k_first, k_second, seen, HALF)
    own = tl.sum(q_first * own_first.to(tl.float32) + q_second * own_second.to(tl.float32), axis=0)
    own = tl.where(chunk == 0, tl.exp(own - D**0.5), 0.0)
    total = own + tl.sum(weight, axis=0)
    sums = own * own_v.to(tl.float32) + tl.sum(weight[:, None] * v.to(tl.float32), axis=0)
    for block in range(1, KEYS // BLOCK):
        seen = slot + block * BLOCK < at
        k_first, k_second, v = _load_block(keys, values, slot + block * BLOCK, seen, HALF)
        weight = _weights(q_first, q_second, k_first, k_second, seen, HALF)
        total += tl.sum(weight, axis=0)
        sums += tl.sum(weight[:, None] * v.to(tl.float32), axis=0)

    y += (row * H + head) * D + dim
    parts += row * CHUNKS * H * D + head * D
    totals += row * CHUNKS * H + head
    if working == 1:
        tl.store(y, sums / total)
    else:
        tl.store(parts + chunk * H * D + dim, sums)
        tl.store(totals + chunk * H, total)
        if _is_last(tickets + row * H + head, working):
            index = tl.arange(0, CHUNKS)
            mask = index < working
            place = parts + index[:, None] * (H * D) + dim[None, :]
            sums = tl.sum(tl.load(place, mask=mask[:, None], other=0.0, cache_modifier=".cg"), axis=0)
            total = tl.sum(tl.load(totals + index * H, mask=mask, other=0.0, cache_modifier=".cg"), axis=0)
            tl.store(y, sums / total)


@triton.jit
def _is_last(ticket, count):
    """Whether this program is the last of `count` that come here: it sees what they have stored. The next may start."""
    tl.debug_barrier()  # the stores of all threads come before the ticket of one
    last = tl.atomic_add(ticket, 1, sem="acq_rel") == count - 1
    if last:
        tl.store(ticket, 0)
    return last


@triton.jit(do_not_specialize=["next_layer"])
def settle(
    stream, delta, start, residual_scale, skip_scale, next_layer, normed, gate_weight, gates, C,
    ADD: tl.constexpr, MIX: tl.constexpr, GATE: tl.constexpr, KV: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """What stands between two products of a batch: ADD delta (B, C) to the stream (B, C), MIX the sum as the next
    layer reads it, norm it into `normed` (B, C), and GATE: compute the layer's value gates (B, H_kv)."""
    _begin(OVERLAP)
    _wait(OVERLAP)
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < C
    value = tl.load(stream + row * C + column, mask=inside, other=0.0)
    if ADD:
        value += tl.load(delta + row * C + column, mask=inside, other=0.0).to(tl.float32)
    if MIX:
        value *= tl.load(residual_scale + next_layer).to(tl.float32)
        skip = tl.load(skip_scale + next_layer).to(tl.float32)
        value += skip * tl.load(start + row * C + column, mask=inside, other=0.0)
    if ADD or MIX:
        tl.store(stream + row * C + column, value, mask=inside)
    inverse = tl.rsqrt(tl.sum(value * value, axis=0) / C + EPSILON)
    tl.store(normed + row * C + column, value * inverse, mask=inside)
    if GATE:
        for head in tl.static_range(KV):
            gate = tl.load(gate_weight + head * CHANNELS + column, mask=column < CHANNELS, other=0.0).to(tl.float32)
            tl.store(gates + row * KV + head, tl.sum(gate * value, axis=0) * inverse)


@triton.jit
def activate(x, out, softcap, count, CAP: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """Entry by entry, ReLU² of x, or with CAP its softcap."""
    _begin(OVERLAP)
    _wait(OVERLAP)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + index, mask=index < count, other=0.0).to(tl.float32)
    if CAP:
        value = softcap * (1 - 2 / (1 + tl.exp(2 * value / softcap)))
    else:
        value = tl.maximum(value, 0.0)
        value *= value
    tl.store(out + index, value, mask=index < count)


@triton.jit
def draw(
    logits, temperature, seed, numbers, positions, ids, bests, choices, tickets, last_slot, V, PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """ids (B): a token a row of logits (B, V), drawn at the temperature, or at 0 the likeliest; positions move on.

    A draw is the largest of logit / temperature + Gumbel noise. The noise depends on the seed, the row's number, its
    position and the token, and on nothing else: not on the batch, nor on what other rows do. A program has 4 × BLOCK
    tokens of a row; the one with the row's last ticket (B) compares their bests (B, PROGRAMS) and choices.
    """
    row, program = tl.program_id(0), tl.program_id(1)
    heat = tl.load(temperature)
    at = tl.load(positions + row)
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    chosen = tl.zeros((BLOCK,), tl.int32)
    zero = tl.zeros((BLOCK,), tl.int32)
    if heat > 0:
        number = zero + tl.load(numbers + row).to(tl.int32)
        place = zero + at.to(tl.int32)
        r0, r1, r2, r3 = tl.philox(tl.load(seed), (program * BLOCK + lane).to(tl.uint32), place.to(tl.uint32),
                                   number.to(tl.uint32), zero.to(tl.uint32))  # fmt: skip
        noise = (_gumbel(r0), _gumbel(r1), _gumbel(r2), _gumbel(r3))
    else:
        nothing = tl.zeros((BLOCK,), tl.float32)
        noise = (nothing, nothing, nothing, nothing)
    for strip in tl.static_range(4):
        column = (program * 4 + strip) * BLOCK + lane
        value = tl.load(logits + row.to(tl.int64) * V + column, mask=column < V, other=float("-inf"))
        value = value / tl.where(heat > 0, heat, 1.0) + noise[strip]
        better = value > best
        best = tl.where(better, value, best)
        chosen = tl.where(better, column, chosen)
    top = tl.max(best, axis=0)
    tl.store(bests + row * PROGRAMS + program, top)
    tl.store(choices + row * PROGRAMS + program, tl.min(tl.where(best == top, chosen, V), axis=0))
    if _is_last(tickets + row, PROGRAMS):
        other = tl.arange(0, triton.next_power_of_2(PROGRAMS))
        mask = other < PROGRAMS
        found = tl.load(bests + row * PROGRAMS + other, mask=mask, other=float("-inf"), cache_modifier=".cg")
        choice = tl.load(choices + row * PROGRAMS + other, mask=mask, other=V, cache_modifier=".cg")
        tl.store(ids + row, tl.min(tl.where(found == tl.max(found, axis=0), choice, V), axis=0).to(tl.int64))
        tl.store(positions + row, tl.minimum(at + 1, last_slot))


@triton.jit
def _gumbel(random):
    uniform = tl.maximum(tl.uint_to_uniform_float(random), 1e-10)
    return -tl.log(-tl.log(uniform))
