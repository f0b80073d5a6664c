# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of random_modules.py: a line for each thing that people write in PyTorch.

A row is `made | code`. `made` is an attribute of the module, which the code calls `$`. Either may be left out. x, y and
z stand for floating values that are there already, k for whole numbers and b for flags. Braces hold Python, evaluated
when the row is drawn: r draws, s is the shape of the code's first value, c its axis 1, g a divisor of that, last its
last extent, i an axis after the first, j another one. Rows that do not fit are drawn again, so a row needs no
conditions.
"""

ACTIVATIONS = """
ReLU() ReLU6() LeakyReLU(0.2) ELU(0.7) SELU() CELU(0.5) GELU() GELU("tanh") SiLU() Mish() Softplus(2,3) Softsign()
Tanhshrink() Hardshrink(0.3) Softshrink(0.2) Hardtanh(-0.7,0.5) Hardsigmoid() Hardswish() LogSigmoid() Sigmoid() Tanh()
Threshold(0.1,-0.3) Softmin({i}) Softmax({i}) LogSoftmax({i}) GLU({i}) PReLU() PReLU({c}) Identity()
""".split()

FUNCTIONS = """
torch.sin(x) torch.cos(x) torch.tan(x*0.5) torch.asin(x.tanh()*0.9) torch.acos(x.tanh()*0.9) torch.atan(x) torch.sinh(x)
torch.cosh(x) torch.asinh(x) torch.acosh(1.1+x.abs()) torch.atanh(x.tanh()*0.9) torch.exp(x) torch.exp2(x)
torch.expm1(x) torch.log(x.abs()+0.1) torch.log1p(x.abs()) torch.log2(x.square()+0.1) torch.log10(x.abs()+0.1)
torch.sqrt(x.abs()+0.1) torch.rsqrt(x.square()+0.1) torch.reciprocal(x.square()+0.5) torch.square(x) x**3 x**-2
(x.abs()+0.1)**0.7 2.0**x torch.erf(x) torch.erfc(x) torch.sigmoid(x) torch.logit(x.sigmoid(),eps=1e-3) torch.sign(x)*x
torch.abs(x) x.floor()+x x.ceil()*x torch.round(x)-x torch.trunc(x)+x torch.frac(x) torch.fmod(x,0.7)
torch.remainder(x,0.7) x%1.3 torch.sinc(x) torch.rad2deg(x) torch.deg2rad(x) torch.nan_to_num(x) torch.clamp(x,-0.5,0.8)
x.clamp(min=0.1) x.clamp(max=0.4) F.normalize(x,dim={i}) F.normalize(x,p=1,dim={i}) -x 1/(x.abs()+1) 2-x x/3 x*0.5+1
torch.positive(x) x.detach()*x x.neg().exp() x.sigmoid()*x torch.hypot(x,x+1) torch.softmax(x,{i}) x.log_softmax({i})
F.gelu(x,approximate="tanh") F.glu(x,{i}) F.rrelu(x) F.logsigmoid(x) torch.special.expit(x)
torch.special.log1p(x.square()) torch.special.xlog1py(x,x.abs()) torch.special.entr(x.abs()+0.1)
x.sqrt().nan_to_num(0.1) x.round(decimals=1)+x torch.heaviside(x.detach(),x.new_tensor(0.5))*x x.type_as(x)
torch.clone(x) x.contiguous() torch.signbit(x)*x x.bfloat16().float()*0+x torch.lgamma(x.abs()+0.5)
torch.digamma(x.abs()+1) torch.i0(x) x.erfinv()
""".split()

PAIRS = """
x+y x-y x*y x/(y.abs()+0.5) torch.maximum(x,y) torch.minimum(x,y) torch.fmax(x,y) torch.fmin(x,y) torch.max(x,y)
torch.min(x,y) torch.atan2(x,y) torch.hypot(x,y) torch.logaddexp(x,y) torch.logaddexp2(x,y) torch.xlogy(x,y.abs()+0.1)
torch.lerp(x,y,0.3) torch.lerp(x,y,z.sigmoid()) torch.addcmul(x,y,z,value=0.5) torch.addcdiv(x,y,z.abs()+1,value=0.3)
torch.clamp(x,y-1,y+0.5) torch.clamp(x,min=y) (x.abs()+0.2)**y torch.fmod(x,y.abs()+0.5) torch.remainder(x,y.abs()+0.5)
torch.copysign(x,y) torch.where(x>y,x,y*2) torch.where(b,x,y) x.masked_fill(b,0.3) x.masked_fill(~b,y.mean())
torch.add(x,y,alpha=0.3) torch.sub(x,y,alpha=2) torch.rsub(x,y) torch.dist(x,y+1.5)*x x.mul(y).sigmoid()
torch.float_power(x.abs()+0.1,2).to(x.dtype) F.mse_loss(x,y,reduction="none")
F.smooth_l1_loss(x,y,reduction="none",beta=0.5) F.huber_loss(x,y,reduction="none",delta=0.4)
F.l1_loss(x,y,reduction="none") F.binary_cross_entropy_with_logits(x,y.sigmoid(),reduction="none")
F.cosine_similarity(x,y,dim={i}) F.binary_cross_entropy(x.sigmoid(),y.sigmoid(),reduction="none")
F.kl_div(x.log_softmax({i}),y.softmax({i}),reduction="none")
F.kl_div(x.log_softmax({i}),y.log_softmax({i}),reduction="none",log_target=True)
F.poisson_nll_loss(x,y.abs(),reduction="none") F.gaussian_nll_loss(x,y,z.abs()+0.1,reduction="none")
F.soft_margin_loss(x,y.sign().detach(),reduction="none") F.pairwise_distance(x,y+1.5)
F.triplet_margin_loss(x,y+1.5,z-1.5,reduction="none") F.margin_ranking_loss(x,y,z,reduction="none",margin=0.1)
torch.cdist(x,y) F.hinge_embedding_loss(x,y.sign(),reduction="none") torch.linalg.cross(x,y) torch.cat([x,y],{i})
torch.cat([y,x,x],{i}) torch.stack([x,y],{i}) torch.stack([y,x],-1).flatten(-2) torch.hstack([x,y]) torch.dstack([x,y])
torch.column_stack([x,y]) x@y x@y.transpose(-1,-2) x.transpose(-1,-2)@y torch.matmul(x,y.transpose(-2,-1).softmax(-1))
torch.bmm(x,y.transpose(1,2)) torch.baddbmm(z,x,y,beta=0.5,alpha=0.3) torch.einsum("n...,n...->n",x,y)
torch.einsum("nij,nkj->nik",x,y) x.broadcast_to(y.shape) torch.einsum("ni,nj->nij",x,y)
torch.outer(x.flatten(),y.flatten()[:3]).view(*x.shape,3) x.expand_as(y) x.view_as(y) x[:,None]*y
torch.linalg.vecdot(x,y) torch.inner(x,y[0]) torch.tensordot(x,y[0],dims=1) (x.unsqueeze(-1)+y.unsqueeze(-2))
torch.kron(x,y[:1]) torch.where(x.abs()>y.abs(),x,torch.zeros_like(x)) torch.gather(x,{i},y.argsort({i})) x*(y>0)
x*(y<=x).to(x.dtype) x+y.amax({i},True) torch.broadcast_tensors(x,y)[0]*y torch.cov(x.flatten(1))@x.flatten(1)
torch.cartesian_prod(x[0,:2].flatten(),y[0,:2].flatten())
""".split()

REDUCTIONS = """
sum({i}) sum({axes}) sum(({i},{j}),keepdim=True) mean({i}) mean({axes},keepdim=True) amax({i}) amin({axes})
amax({i},keepdim=True) prod({i}) prod({i},keepdim=True) logsumexp({i}) logsumexp({axes}) norm(p=2,dim={i})
norm(p=1,dim={axes}) norm(dim={i},keepdim=True) var({i}) var({i},correction=0) std({axes},correction={r.n(0,1)})
var({axes},keepdim=True) std({i},unbiased=False) max({i})[0] min({i},keepdim=True)[0] max({i}).values cumsum({i})
cumprod({i}) logcumsumexp({i}) cummax({i})[0] cummin({i})[0] diff(dim={i}) diff(n=2,dim={i}) topk({r.n(1,3)},{i})[0]
topk({r.n(1,3)},{i},largest=False)[0] sort({i})[0] sort({i},descending=True)[0] sort(stable=True,dim={i}).values
median({i})[0] kthvalue(2,{i})[0] nansum({i}) nanmean({i}) aminmax(dim={i}) norm(p=float("inf"),dim={i})
norm(p=3,dim={i}) square().sum({i}).sqrt() flip({i}) flip({axes}) roll({r.n(-3,3)},{i})
roll(({r.n(1,2)},{r.n(-2,-1)}),({i},{j})) transpose({i},{j}) transpose(0,{i}) transpose(-1,-2) movedim({i},{j})
movedim(0,-1) permute({perm}) swapaxes({i},-1) flatten(1) flatten({r.n(1,2)},{r.n(2,3)}) flatten(-2) squeeze()
squeeze({i}) squeeze(-1) unsqueeze({i}) unsqueeze(-1) unsqueeze(1) narrow({i},{r.n(0,1)},{r.n(1,2)})
select({i},{r.n(-1,1)}) unbind({i})[{r.n(-1,1)}] unbind({i}) chunk({r.n(2,3)},{i}) split({r.n(1,2)},{i})
tensor_split({r.n(2,3)},dim={i}) tensor_split((1,2),dim={i}) split([1,{s[i]-1}],{i}) repeat({repeats}) tile({repeats})
repeat_interleave({r.n(2,3)},dim={i}) view(x.shape[0],-1) reshape(x.size(0),-1,{last}) view(-1,*{s[1:]})
view({factored}) reshape({factored}) unflatten({i},(-1,{r.n(1,3)})) unfold({i},{r.n(1,3)},{r.n(1,2)})
expand({r.n(2,3)},*{[-1]*len(s)}).movedim(1,0) rot90({r.n(1,3)},({i},{j})) tril({r.n(-1,1)}) triu({r.n(-1,1)})
diagonal(0,{i},{j}) diagonal(1,-2,-1) diag_embed() fill_diagonal_(0.2) mT adjoint()
index_select({i},torch.tensor({picks})) msort() ravel().view(x.shape) softmax({i}) log_softmax({i}) softmax(0).detach()
cumsum({i}).flip({i}) renorm(2,{i},0.7) det() logdet() inverse() index_fill({i},torch.tensor({picks[:1]}),0.5)
squeeze({i}).unsqueeze({i}) moveaxis(1,-1) swapdims({i},{j}) t().t() trace() new_zeros(x.shape).add(x)
new_full((x.shape[0],3),0.5)*x.sum() argmax({i}).to(x.dtype) float().to(x.dtype)
""".split()

SLICES = """
[:,1:] [:,:-1] [:,::2] [:,1::2] [:,-2:] [:,0] [:,-1] [...,0] [...,1:] [...,::2] [...,-1:] [:,:,1:] [:,:,::2] [:,None]
[...,None] [:,{r.picks(s[1])}] [:,[0,-1]] [...,{r.picks(last)}] [:,torch.tensor({r.picks(s[1])})] [:,:,{r.picks(s[-1])}]
[:,1:,:-1] [:,:1] [:,torch.arange(x.shape[1]-1,-1,-1)] [:,{r.picks(s[1])[:2]},{r.picks(last)[:2]}] [:,:,None]
[:,::3,...,::2] [:,1:2] [:,0:x.shape[1]//2] [:,x.shape[1]//2:] [torch.arange(x.shape[0]),{r.n(0,1)}]
[:,torch.tensor([[0,1],[1,0]])] [:,:,[1,0]] [:,torch.tensor(-1)]
[:,torch.tensor([True,False]*{s[1]//2}+[True]*{s[1]%2})] [:,:x.size(-1)] [:,-{s[1]}:] [:,0,None] [::1]
""".split()

SIZE = "{r.pick(1, 2, 3, tuple(r.n(1, 3) for _ in s[2:]))}"
WINDOW = "{r.n(2, 3)}, stride={r.pick(1, 2, 3)}, padding={r.n(0, 1)}"
OUT = "{r.pick(1, 2, 3, tuple(r.n(1, 4) for _ in s[2:]))}"

IMAGES = [  # d is the number of spatial axes
    "nn.Conv{d}d({c}, {g * r.n(1, 3)}, " + SIZE + ", stride={r.n(1, 2)}, padding={r.n(0, 2)}, dilation={r.n(1, 2)},"
    " groups={g}, bias={r.flag()},"
    " padding_mode={r.pick('zeros', 'zeros', 'reflect', 'replicate', 'circular')!r}) | $(x)",
    "nn.Conv{d}d({c}, {r.n(1, 6)}, " + SIZE + ", padding={r.pick('same', 'valid')!r}, dilation={r.n(1, 2)}) | $(x)",
    "nn.Conv{d}d({c}, {c}, 3, padding={r.n(0, 2)}, groups={c}) | $(x)",
    "nn.Conv{d}d({c}, {r.n(1, 6)}, 1, bias=False) | $(x)",
    "nn.ConvTranspose{d}d({c}, {g * r.n(1, 3)}, " + SIZE + ", stride={r.n(1, 3)}, padding={r.n(0, 1)}, groups={g},"
    " output_padding={r.n(0, 1)}, dilation={r.n(1, 2)}, bias={r.flag()}) | $(x)",
    "P({r.n(1, 5)}, {c}, *[{r.n(1, 3)}] * {d}) | F.conv{d}d(x, $, padding={r.n(0, 2)})",
    "P({r.n(1, 4)}, {c}, *[2] * {d}) | F.conv{d}d(x, $ * 0.5, stride={r.n(1, 2)})",
    "P({c}, {r.n(1, 4)}, *[{r.n(1, 3)}] * {d}) | F.conv_transpose{d}d(x, $, stride={r.n(1, 2)})",
    "weight_norm(nn.Conv{d}d({c}, {r.n(1, 4)}, " + SIZE + ")) | $(x)",
    "spectral_norm(nn.Conv{d}d({c}, {r.n(2, 4)}, 2)) | $(x)",
    "nn.BatchNorm{d}d({c}{r.pick('', ', affine=False', ', momentum=0.3', ', eps=1e-2')}) | $(x)",
    "nn.BatchNorm{d}d({c}, track_running_stats=False) | $(x)",
    "nn.InstanceNorm{d}d({c}, affine={r.flag()}, track_running_stats={r.flag()}) | $(x)",
    "nn.GroupNorm({g}, {c}, affine={r.flag()}) | $(x)",
    "nn.MaxPool{d}d(" + WINDOW + ", ceil_mode={r.flag()}, dilation={r.pick(1, 1, 2)}) | $(x)",
    "nn.AvgPool{d}d(" + WINDOW + ", ceil_mode={r.flag()}, count_include_pad={r.flag()}) | $(x)",
    "nn.AvgPool{d}d({r.n(1, 3)}) | $(x)",
    "F.max_pool{d}d(x, " + SIZE + ")",
    "F.max_pool{d}d(x, 2, 2, return_indices=True)[0]",
    "nn.AdaptiveAvgPool{d}d(" + OUT + ") | $(x)",
    "nn.AdaptiveMaxPool{d}d(" + OUT + ") | $(x)",
    "nn.LPPool{d}d({r.pick(1, 2, 3)}, 2) | $(x)",
    "F.interpolate(x, scale_factor={r.pick(2, 3, 0.5, 1.5, 0.7)}, mode={r.pick('nearest', 'nearest-exact', 'area')!r})",
    "F.interpolate(x, size={tuple(r.n(1, 7) for _ in s[2:])}, mode={r.pick('nearest', 'nearest-exact', 'area')!r})",
    "F.interpolate(x, size={tuple(r.n(1, 7) for _ in s[2:])}, mode={linear!r}, align_corners={r.flag()})",
    "F.interpolate(x, scale_factor={r.pick(2, 3, 0.5, 1.5, 0.7)}, mode={linear!r}, align_corners={r.flag()})",
    "nn.Upsample(scale_factor=2, mode={r.pick('nearest', linear)!r}) | $(x)",
    "F.pad(x, {tuple(r.n(-1, 2) for _ in range(2 * r.n(1, len(s) - 2)))}, value={r.pick(0, 0.5)})",
    "F.pad(x, {tuple(r.n(0, 2) for _ in s[2:] * 2)}, mode={r.pick('reflect', 'replicate', 'circular')!r})",
    "nn.ReflectionPad{d}d({r.n(1, 2)}) | $(x)",
    "nn.ReplicationPad{d}d({tuple(r.n(0, 2) for _ in s[2:] * 2)}) | $(x)",
    "nn.ConstantPad{d}d({r.n(-1, 2)}, 0.4) | $(x)",
    "nn.CircularPad{d}d({r.n(1, 2)}) | $(x)",
    "nn.ZeroPad{d}d({r.n(1, 2)}) | $(x)",
    "P({c}, *[1] * {d}) | x * $",
    "nn.LocalResponseNorm({r.n(2, 4)}, k=1.5) | $(x)",
    "nn.ChannelShuffle({g}) | $(x)",
    "P({c}) | x + $.view({[-1] + [1] * d})",
    "P({c}) | F.prelu(x, $)",
    "P({c}) | F.batch_norm(x, None, None, $, None, training=True)",
    "P({c}) | F.instance_norm(x, weight=$)",
    "P({c}) | F.group_norm(x, {g}, $, $)",
    "nn.Sequential(nn.AdaptiveAvgPool{d}d(1), nn.Conv{d}d({c}, {c}, 1), nn.Sigmoid()) | x * $(x)",
]

RANKS = {  # rows for values of a rank alone
    2: [
        "nn.BatchNorm1d({c}) | $(x)", "nn.Bilinear({c}, {c}, {r.n(1, 5)}) | $(x, x.tanh())",
        "P({r.n(1, 5)}, {c}) | F.linear(x, $)", "P({c}, {r.n(1, 5)}) | torch.addmm($[0], x, $, beta=0.5, alpha=0.7)",
        "P({c}, {r.n(1, 4)}) | torch.mm(x, $)", "x.view({factored})", "F.one_hot(x.argmax(1), {c}).to(x.dtype) * x",
        "torch.diag_embed(x)", "torch.vander(x[:, 0], 3) * 0.1",
        "P({r.n(2, 5)}, {c}) | torch.cdist(x, $, p={r.pick(1.0, 2.0)})", "F.cross_entropy(x, k, reduction='none')",
        "F.cross_entropy(x, k, reduction='none', label_smoothing=0.1)",
        "F.nll_loss(x.log_softmax(1), k, reduction='none')", "F.multi_margin_loss(x, k, reduction='none')",
        "nn.GRUCell({c}, 3) | $(x)", "nn.LSTMCell({c}, 3) | $(x)[1]", "nn.RNNCell({c}, 3) | $(x)",
        "x[torch.arange(x.shape[0]), k]", "x.gather(1, k[:, None])", "x.t().contiguous()",
        "nn.EmbeddingBag({top}, 3, mode={r.pick('sum', 'mean', 'max')!r}) | $(k)", "x.t() @ x",
        "nn.AdaptiveLogSoftmaxWithLoss({c}, 6, [2, 4]) | $.log_prob(x)",
        "torch.linalg.norm(x, dim=1, keepdim=True) * x",
    ],
    3: [
        "nn.{r.pick('LSTM', 'GRU', 'RNN')}({last}, {r.n(1, 4)}, {r.n(1, 2)}, batch_first=True,"
        " bidirectional={r.flag()}, bias={r.flag()}) | $(x)[0]",
        "nn.{r.pick('LSTM', 'GRU')}({last}, 3) | $(x.transpose(0, 1))[0].transpose(0, 1)",
        "nn.GRU({last}, {r.n(1, 4)}, batch_first=True) | $(x)[1].transpose(0, 1)",
        "nn.LSTM({last}, 3, 2, batch_first=True, bidirectional=True) | $(x)[1][{r.n(0, 1)}].transpose(0, 1)",
        "nn.LSTM({last}, 4, proj_size=2, batch_first=True) | $(x)[0]",
        "nn.RNN({last}, 3, nonlinearity='relu', batch_first=True) | $(x)[0]",
        "nn.LSTM({last}, 3, batch_first=True) | $(x, (y[None, :, :3].contiguous(), y[None, :, :3].tanh()))[0]",
        "nn.GRU({last}, 3, batch_first=True) | $(x, x.mean(1)[None, :, :1].expand(1, -1, 3).contiguous())[0]",
        "nn.MultiheadAttention({last}, {r.divisor(last)}, batch_first=True, bias={r.flag()}, add_bias_kv={r.flag()},"
        " add_zero_attn={r.flag()}) | $(x, x, x, need_weights={r.flag()})[0]",
        "nn.MultiheadAttention({last}, {r.divisor(last)}, batch_first=True, kdim={last}, vdim={last})"
        " | $(x, x.tanh(), x.sin())",
        "nn.MultiheadAttention({last}, {r.divisor(last)}, batch_first=True) | $(x, x, x, need_weights=False,"
        " attn_mask=torch.triu(torch.ones({c}, {c}, dtype=torch.bool), 1))[0]",
        "nn.MultiheadAttention({last}, {r.divisor(last)}, batch_first=True)"
        " | $(x, x, x, key_padding_mask=x[:, :, 0] > x[:, :, 0].mean(1, True) + 0.3, need_weights=False)[0]",
        "nn.MultiheadAttention({last}, {r.divisor(last)})"
        " | $(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1))[0].transpose(0, 1)",
        "nn.TransformerEncoderLayer({last}, {r.divisor(last)}, 5, 0.0, {r.pick('relu', 'gelu')!r}, batch_first=True,"
        " norm_first={r.flag()}) | $(x)",
        "nn.TransformerEncoderLayer({last}, {r.divisor(last)}, 5, 0.0, batch_first=True) | $(x,"
        " src_mask=nn.Transformer.generate_square_subsequent_mask({c}), is_causal=True)",
        "nn.TransformerDecoderLayer({last}, {r.divisor(last)}, 5, 0.0, batch_first=True) | $(x, y)",
        "F.scaled_dot_product_attention(x, x.sin(), x, is_causal={r.flag()}, scale={r.pick(None, 0.3)})",
        "P({c}, {c}) | F.scaled_dot_product_attention(x, x, x.tanh(), attn_mask=$)",
        "F.scaled_dot_product_attention(x, y, y)", "F.scaled_dot_product_attention(x, x, x, attn_mask=b)",
        "torch.bmm(x, x.transpose(1, 2))", "torch.baddbmm(x, x @ x.transpose(1, 2), x, alpha=0.2)",
        "P({last}, 2) | x @ $", "P({c}, 2, {last}) | torch.einsum('nce,cde->ncd', x, $)",
        "nn.Bilinear({last}, {last}, 3) | $(x, x.sin())", "x.gather({i}, k.unsqueeze({i}))",
        "torch.take_along_dim(x, x.argsort({i}), {i})", "x.unflatten(-1, (-1, {r.divisor(last)})).transpose(1, 2)",
        "F.fold(x, 2, 1)", "torch.block_diag(x[0], x[1])[None] * x.sum((1, 2), True)",
        "x.scatter({i}, x.argsort({i}), x.sin())", "F.cross_entropy(x, k, reduction='none')",
        "torch.linalg.matrix_norm(x)",
        "nn.Transformer({last}, {r.divisor(last)}, 1, 1, 6, 0.0, batch_first=True) | $(x, x.tanh())",
        "torch.trapezoid(x, dim={i})", "nn.CosineSimilarity(dim={i}) | $(x, x.sin())",
        "torch.linalg.det(x @ x.mT + torch.eye({c}))", "torch.chain_matmul(x[0], x[1].T)",
        "torch.linalg.matrix_power(x @ x.mT * 0.1, 3)", "nn.PairwiseDistance() | $(x, x.sin())",
        "torch.linalg.solve(x, x)",
    ],
    4: [
        "F.pixel_shuffle(x, 2)", "F.pixel_unshuffle(x, 2)", "nn.PixelShuffle({r.pick(1, 2)}) | $(x)",
        "nn.Softmax2d() | $(x)",
        "F.unfold(x, {r.n(1, 3)}, dilation={r.n(1, 2)}, padding={r.n(0, 1)}, stride={r.n(1, 2)})",
        "F.fold(F.unfold(x, 2, padding=1, stride={r.n(1, 2)}) * 0.5, {tuple(s[2:])}, 2, padding=1, stride={r.n(1, 1)})",
        "F.interpolate(x, size={(r.n(1, 7), r.n(1, 7))}, mode='bicubic', align_corners={r.flag()},"
        " antialias={r.flag()})",
        "F.interpolate(x, scale_factor={r.pick(2, 1.5, 0.5)}, mode='bilinear', antialias=True)",
        "F.grid_sample(x, (x[:, :2].tanh() * 0.9).permute(0, 2, 3, 1), mode={r.pick('bilinear', 'bicubic')!r},"
        " padding_mode={r.pick('zeros', 'border', 'reflection')!r}, align_corners={r.flag()})",
        "P(1, 2, 3) | F.grid_sample(x, F.affine_grid($.expand(x.shape[0], 2, 3) * 0.3, [x.shape[0], {c}, 4, 3],"
        " align_corners={r.flag()}), align_corners={r.flag()})", "nn.AvgPool2d(2, 1, divisor_override=3) | $(x)",
        "F.scaled_dot_product_attention(x, x, x, is_causal={r.flag()})",
        "P({c}, 1, 1) | F.scaled_dot_product_attention(x * $, x, x.sin(), attn_mask=None)", "x.permute(0, 2, 3, 1)",
        "nn.LayerNorm({c}) | $(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)",
        "nn.Linear({c}, {r.n(1, 5)}) | $(x.flatten(2).transpose(1, 2))",
        "nn.Sequential(nn.Conv2d({c}, {c}, 3, 1, 1), nn.BatchNorm2d({c}), nn.ReLU()) | x + $(x)",
        "x.to(memory_format=torch.channels_last)", "P({c}, {s[2]}, {s[3]}) | torch.einsum('nchw,chw->nc', x, $)",
        "x.flatten(2).mean(-1)", "nn.Unfold(2) | $(x).transpose(1, 2)",
        "F.conv2d(x.reshape(1, -1, *x.shape[2:]), x.new_ones({4 * s[1]}, 1, 2, 2), groups={4 * s[1]}).view(x.shape[0],"
        " {c}, {s[2] - 1}, {s[3] - 1})", "F.max_pool2d(x, (1, 2))", "nn.MaxPool2d(3, 2, 1) | $(x).relu()",
        "nn.Flatten() | $(x)", "nn.Unflatten(1, ({g}, {c // g})) | $(x)", "nn.PReLU({c}, 0.1) | $(x)",
    ],
    5: [
        "F.grid_sample(x, (x[:, :3].tanh() * 0.9).permute(0, 2, 3, 4, 1), align_corners={r.flag()})", "x.flatten(2, 3)",
        "x.mean(2)",
        "x.permute(0, 2, 1, 3, 4).flatten(0, 1).view({s[0] * s[2]}, {c}, -1).unflatten(0, (x.shape[0], -1))",
        "x.flatten(1, 2)",
    ],
    0: [  # for all ranks
        "nn.Linear({last}, {r.n(1, 6)}, bias={r.flag()}) | $(x)", "nn.LayerNorm({s[-r.n(1, len(s) - 1):]}) | $(x)",
        "nn.LayerNorm({last}, elementwise_affine={r.flag()}, bias={r.flag()}) | $(x)", "nn.RMSNorm({last}) | $(x)",
        "P(*{s[1:]}) | x * $", "P({last}) | x + $", "P(1) | x * $", "P(*{s[1:]}) | torch.cat([x, $.expand_as(x)], {i})",
        "nn.Parameter(torch.tensor(0.7)) | x * $", "nn.Buffer(torch.rand({last})) | x + $",
        "P({last}) | x - $.detach()", "nn.Buffer(torch.arange({last}) * 0.1) | torch.sin(x + $)",
        "P({last}, {last}) | F.linear(x, $, $[0])", "P({r.n(2, 5)}, {last}) | x @ $.t()",
        "P({last}, {r.n(1, 4)}) | torch.matmul(x, $)", "P({last}) | torch.matmul(x, $)",
        "P({last}, {last}) | x @ torch.tril($)", "P({last}) | x * $.softmax(0)", "P({last}) | torch.maximum(x, $)",
        "P({r.n(2, 4)}, 1, {last}) | (x.unsqueeze(1).unsqueeze(1) * $).sum({r.n(1, 2)})",
        "weight_norm(nn.Linear({last}, 3)) | $(x)", "nn.Buffer(torch.randperm({s[i]})) | x.index_select({i}, $)",
        "P({r.n(3, 6)}, {last}) | x + $[:{s[-2] if len(s) > 2 else 1}]",
        "nn.Sequential(nn.Linear({last}, 5), nn.GELU(), nn.Linear(5, {last})) | x + $(x)",
        "nn.Linear({last}, {last}) | $($(x).tanh())", "nn.Linear({last}, {last}) | x @ $.weight.t()",
        "P({s[i]}) | x.movedim({i}, -1) * $", "P({last}) | torch.outer($, $)[0] * x",
        "{ein[0]} | torch.einsum({ein[1]!r}, x, $)", "torch.einsum({self_ein!r}, x, x)",
        "P({last}) | torch.addcmul(x, x, $)", "x.sum({i}, keepdim=True).expand_as(x) * 0.3",
        "torch.arange(x.shape[-1]) * 0.1 + x", "x / x.shape[-1] ** 0.5", "torch.linspace(0, 1, x.shape[-1]) * x",
        "torch.cat([x, torch.zeros_like(x[:, :1])], 1)", "x * torch.tensor(0.7, dtype=x.dtype)",
        "torch.cat([torch.ones(x.shape[0], 1, *x.shape[2:]), x], 1)", "x.transpose(0, {i}).tanh().transpose(0, {i})",
        "x.movedim(0, -1).softmax({i}).movedim(-1, 0)", "x.flip({i}).cumsum({i})", "torch.full_like(x, 0.5) * x",
        "x + torch.eye({last})[0]", "P({last}) | torch.where(torch.arange({last}) % 2 == 0, x, $)",
        "torch.cumsum(x, {i}) / torch.arange(1, {s[i] + 1}).view({along})",
        "P({r.n(2, 4)}, {last}) | torch.stack([x @ w for w in $], -1)",
        "torch.stack([x, x.sin(), x * 2], {i}).mean({i})", "x.scatter_add({i}, x.argsort({i}), x * 0.5)",
        "torch.zeros_like(x).scatter({i}, x.argsort({i})[:, :1], 1.0) + x",
        "x.scatter_reduce({i}, x.argsort({i}).flip({i}) // 2, x, {r.pick('sum', 'amax', 'amin', 'mean', 'prod')!r})",
        "x.index_add({i}, torch.tensor({picks[:1]}), x.narrow({i}, 0, 1))",
        "x.index_copy({i}, torch.tensor({picks[:1]}), x.narrow({i}, 1, 1))",
        "torch.index_put(x, (torch.arange(x.shape[0]), torch.tensor(0)), x[:, 1])",
        "x.select_scatter(x.select({i}, 1), {i}, 0)", "x.slice_scatter(x.narrow({i}, 0, 1).sin(), {i}, 1, 2)",
        "x.topk({r.n(1, 2)}, {i})[1].to(x.dtype) * 0.1 + x.mean({i}, True)", "torch.var_mean(x, {i})",
        "torch.std_mean(x, {axes}, keepdim=True)", "torch.linalg.vector_norm(x, {r.pick(1, 2, 3, 0.5)}, {axes})",
        "torch.tensordot(x, torch.ones({last}, 2), dims=([-1], [0]))", "P({last}) | x * $.exp() + $",
        "x * x.new_ones({last})",
        "torch.meshgrid(torch.arange({float(last)}), torch.arange(3.0), indexing='ij')[0][:, 0] * 0.1 + x",
        "x * float(x.shape[1])", "P({last}) | x * F.softplus($) + (x * $).detach()", "x.where(x > 0.1, x.sin())",
        "torch.where(x > 0, x, 0.3)", "x.lerp(x.sin(), 0.2)", "assigned(x, (slice(None), 0), 0.3)",
        "assigned(x, (..., slice(1, None)), x[..., :-1])", "x.masked_scatter(x > 0.2, x.flip({i}))",
        "x.double().sum({i}).to(x.dtype)", "torch.bucketize(x, torch.tensor([-0.5, 0.1, 0.7])) * 0.1 + x",
        "torch.atleast_3d(x)", "torch.searchsorted(torch.tensor([-0.5, 0.1, 0.7], dtype=x.dtype), x) * 0.2 * x",
        "P({last}) | F.linear(x, F.normalize($, dim=0)[None])",
        "nn.Sequential(*[nn.Linear({last}, {last}) for _ in range(2)]) | $(x)",
        "P({last}) | F.layer_norm(x, [{last}], $)",
        "P({last}) | x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * $",
        "P({last}) | torch.repeat_interleave(x * $, 2, dim={i})", "P({last}) | torch.rot90(x * $, 1, (1, -1))",
        "nn.AlphaDropout(0.0) | $(x)", "nn.Dropout(0.3) | $(x)", "F.softmax(x * 3, {i}) * x",
        "P({last}) | torch.cat([f(x) * $ for f in (torch.sin, torch.cos)], {i})",
        "torch.cat(x.chunk(2, {i})[::-1], {i})", "torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1)",
        "x.split({r.n(1, 3)}, {i})[0]", "x[:, :1].expand(-1, 3, *{[-1] * (len(s) - 2)})",
    ],
}

WHOLE = [  # give whole numbers, or take them: s is k's shape
    "x.argmax({i})", "x.argmin({i}, keepdim={r.flag()})", "x.topk(2, {i})[1]", "x.argsort({i})",
    "x.sort({i}, descending=True)[1]", "(x > 0).sum({i})", "(x * 3).round().long()", "x.max({i})[1]",
    "torch.count_nonzero(x > 0.2, {i})", "k + 1", "k * 2", "k // 2", "k % 3", "-k", "k.clamp(0, 2)", "k.flip({i})",
    "k.unsqueeze(-1)", "k[:, :1]", "k.sum({i})", "k.cumsum({i})", "k.amax({i})", "k - k.amin()",
    "torch.where(k > 1, k, 0)", "k.abs()", "torch.bitwise_and(k, 3)", "k << 1", "k.to(torch.int32)",
    "k.transpose(-1, -2)", "k.flatten(1)", "torch.maximum(k, torch.ones_like(k))", "k ^ 1",
    "torch.div(k, 2, rounding_mode='floor')", "k.remainder(2)", "torch.div(k, 2, rounding_mode='trunc')",
    "torch.stack([k, k + 1], -1)", "torch.cat([k, k], {i})", "k.sort({i})[0]", "k.square()", "k.sign()", "k.long()",
]
USES = [  # of whole numbers and flags, into floating values
    "nn.Embedding({top}, {r.n(1, 5)}) | $(k)", "nn.Embedding({top}, 3, padding_idx=0) | $(k)",
    "F.one_hot(k, {top}).to(x.dtype)", "k.to(x.dtype) * 0.2", "k.float() * 0.3", "x * k", "x + k.to(x.dtype)",
    "x / (k.abs() + 1)", "P({top}, 2) | $[k]", "P({top}, 2) | F.embedding(k, $)",
    "P({top}, 3) | F.one_hot(k, {top}).to($.dtype) @ $", "b.to(x.dtype) + x", "x * b", "b.float() * 0.3",
    "torch.where(b, x, 0.1)", "x.masked_fill(b, -0.2)",
    "P({top}, 2) | torch.index_select($, 0, k.flatten()).view(*k.shape, 2)", "torch.sin(k * 0.5)", "k * 0.1",
    "2.0 ** (-k.abs())", "k / 3", "(k == 1).to(x.dtype)", "x.gather({i}, k % 2)", "k.sum({i}) * 0.1",
    "torch.gather(x, 1, (k % {2})[:, :1])", "P({top}) | x * $[k]", "P({top}) | $.take(k)",
    "torch.exp(-k.abs().float())", "k.float().mean({i})", "P({top}, 3) | $.t()[:, k].movedim(0, -1)",
    "torch.zeros(*k.shape, {top}).scatter(-1, k.unsqueeze(-1), 1.0)", "F.one_hot(k).float()",
]
FLAGS = [
    "x > 0.1", "x <= y", "x.abs() < 0.5", "k == 1", "k >= 2", "k != 0", "~b", "b & (x > 0)",
    "torch.logical_or(b, x < -0.5)", "b ^ (x > 0)", "b.any({i})", "torch.logical_not(b)", "b.all({i}, keepdim=True)",
    "torch.isnan(x)", "x.isfinite()", "torch.logical_xor(b, x > 0)", "b[:, :1]", "b.flip({i})", "b.unsqueeze(-1)",
    "torch.isclose(x, y)", "x.bool()", "(x > 0).cumsum({i}) > 1", "torch.ge(x, 0.2)", "k.bool()", "x.ne(y)",
]


def all_rows():
    """Pairs of the rank that a row needs, 0 for any, and the row."""
    rows = [(rank, row) for rank, several in RANKS.items() for row in several]
    rows += [(rank, row) for rank in (3, 4, 5) for row in IMAGES]
    rows += [(0, f"nn.{name} | $(x)") for name in ACTIVATIONS]
    rows += [(0, row) for row in FUNCTIONS + PAIRS + WHOLE + USES + FLAGS]
    rows += [(0, "x.mT" if row == "mT" else f"x.{row}") for row in REDUCTIONS]
    return rows + [(0, f"x{row}") for row in SLICES]
