//! Routed experts and what runs beside them: products, launches and the exchange of tokens.

use std::collections::HashMap;

use super::linear::thin;
use super::{Adapted, Cell, CostModel, Experts, Kept, Part, Passes, Routed, RoutedKey};
use crate::cost::Item;
use crate::cost::compute::Product;
use crate::plan::{CudaGraphs, Dispatcher, Module};
use crate::spec::job::{ExpertCapacity, Routing, Training};
use crate::spec::model::Moe;

impl CostModel<'_> {
    /// Tokens of the most loaded rank over an equal share.
    pub(super) fn imbalance(&self, e: &Moe) -> f64 {
        let routed = match self.job.routing {
            Routing::Balanced => 1.0,
            Routing::Natural if e.experts > 16 => self.profile.experts.imbalance.0,
            Routing::Natural => self.profile.experts.imbalance.1,
        };
        match self.job.expert_capacity {
            Some(ExpertCapacity { factor, padded: true }) => factor,
            Some(ExpertCapacity { factor, padded: false }) => routed.min(factor),
            None => routed,
        }
    }

    /// Whether the host reads in every layer how many tokens each expert got, which drains the queue of launches: not where
    /// experts are padded to a capacity, unless tokens are gathered everywhere
    /// (Megatron-LM:megatron/core/transformer/moe/token_dispatcher.py, `drop_and_pad` of the all-to-all and flex dispatchers).
    pub(super) fn reads_counts(&self, c: &Cell) -> bool {
        let padded = self.job.expert_capacity.is_some_and(|capacity| capacity.padded);
        !padded || c.dispatchers.iter().all(|&dispatcher| dispatcher == Some(Dispatcher::AllGather))
    }

    /// What runs beside routed experts whatever their degrees: shared experts, and projections to and
    /// from a latent width.
    pub(super) fn beside_experts(&self, c: &Cell, e: &Moe, part: &mut Part) {
        let h = self.model.hidden as f64;
        let local_tokens = c.tokens / c.split as f64;
        let mut body = Passes::default();
        if let Some(latent) = e.latent_width {
            let low = self.low.is_some();
            self.adapted(local_tokens, latent as f64, h, low, &mut body);
            self.adapted(local_tokens, h, latent as f64, low, &mut body);
            part.shapes.push((latent, self.model.hidden));
            part.shapes.push((self.model.hidden, latent));
        }
        if e.shared_width > 0 {
            let (mut shared, mut second) = (Passes::default(), Passes::default());
            let matrices = e.activation.matrices();
            self.column(c, e.shared_width * (matrices - 1), &mut shared, &mut part.shapes);
            self.row(c, e.shared_width, &mut second, &mut part.shapes);
            let elements = e.shared_width as f64 * c.tokens / c.tp;
            self.activation(elements, e.activation.gated(), &mut shared);
            part.halves = [&shared, &second].map(|half| (half.forward.total(), half.backward.total()));
            self.add(&mut shared, &second);
            part.shared = (2.0 * (matrices - 1) as f64 + self.input_bytes()) * elements;
            part.stays.local += part.shared;
            part.modules.push((Module::SharedExperts, shared.forward.total(), part.shared));
            self.add(&mut body, &shared);
        }
        part.beside = body;
        self.add(&mut part.passes, &body);
    }

    /// Products, activation and quantisation of the routed experts of a rank, for `copies` routed tokens.
    pub(super) fn routed(&self, c: &Cell, e: &Moe, copies: f64) -> Routed {
        let d = &self.device;
        let width = e.latent_width.unwrap_or(self.model.hidden) as f64;
        let matrices = e.activation.matrices() as f64;
        let experts = e.experts as f64 / f64::from(c.key.expert_parallel);
        let fm = e.width as f64 / f64::from(c.key.expert_tensor_parallel);
        let low = self.low.is_some();
        let mut body = Passes::default();
        let bytes = if low { self.input_bytes() } else { 2.0 };
        let product = |rows: f64, columns: f64, inner: f64, result_bytes: f64| Product {
            rows,
            columns,
            inner,
            groups: experts,
            operand_bytes: bytes,
            result_bytes,
        };
        let rows = copies / experts;
        for (outputs, inputs) in [((matrices - 1.0) * fm, width), (width, fm)] {
            body.forward.add(Item::Experts, d.grouped(&product(rows, outputs, inputs, 2.0), low));
            body.backward.add(Item::Experts, d.grouped(&product(rows, inputs, outputs, 2.0), low));
            if self.training_base() {
                let result = self.weight_gradient_bytes();
                let weight = d.grouped(&product(outputs, inputs, rows, result), low);
                body.backward.add(Item::Experts, weight);
                body.weight += weight;
            }
            let (Training::Lora { rank }, Adapted::AllLinear) = (self.job.training, self.adapted) else {
                continue;
            };
            let rank = f64::from(rank);
            for (outputs, inputs) in [(rank, inputs), (outputs, rank)] {
                let products = thin(rows, outputs, inputs, experts).map(|product| d.grouped(&product, false));
                let [forward, data, weight] = products;
                body.forward.add(Item::Experts, forward);
                body.backward.add(Item::Experts, data + weight);
                body.weight += weight;
            }
            body.forward.add(Item::Experts, d.stream(6.0 * outputs * copies, 1.0));
            body.backward.add(Item::Experts, d.stream(6.0 * inputs * copies, 1.0));
        }
        let graphed = c.key.cuda_graphs == CudaGraphs::FullIteration;
        let (forward, backward) = if e.activation.gated() { (6.0, 10.0) } else { (4.0, 6.0) };
        // Under full-iteration graphs the activation is fused into the products.
        let (share_forward, share_backward) = if graphed { (0.0, 0.5) } else { (1.0, 1.0) };
        let mut activation = d.stream(forward * fm * copies * share_forward, 1.0);
        body.forward.add(Item::Experts, activation);
        body.backward.add(Item::Experts, d.stream(backward * fm * copies * share_backward, 1.0));
        if let Some(l) = self.low {
            let (into, out) = (width + fm, width + (matrices - 1.0) * fm);
            body.forward.add(Item::Experts, d.stream(l.quantise_bytes * into * copies, 2.0));
            body.backward.add(Item::Experts, d.stream(l.quantise_bytes * out * copies, 2.0));
        }
        if e.expert_bias {
            let share = if graphed { 0.3 } else { 1.0 };
            let traffic =
                |channels: f64| d.stream(share * self.profile.experts.bias_bytes * channels * copies, 0.0);
            let (first, second) = (traffic((matrices - 1.0) * fm), traffic(width));
            body.forward.add(Item::Experts, first + second);
            body.backward.add(Item::Experts, 1.5 * (first + second));
            // The first product's are added where the activation is computed, again where it is recomputed
            // (Megatron-LM:megatron/core/transformer/moe/experts.py, `bias_act_func`).
            activation += first;
        }
        Routed { passes: body, activation }
    }

    /// Routed experts with router, permutation and exchange.
    pub(super) fn experts(
        &self,
        c: &Cell,
        kind: usize,
        e: &Moe,
        part: &Part,
        (stays, moves): (&mut Kept, &mut Kept),
        routed: &mut HashMap<RoutedKey, Routed>,
    ) -> Experts {
        let x = &self.profile.experts;
        let d = &self.device;
        let h = self.model.hidden as f64;
        let width = e.latent_width.map_or(h, |w| w as f64);
        let (ep, etp) = (f64::from(c.key.expert_parallel), f64::from(c.key.expert_tensor_parallel));
        let matrices = e.activation.matrices() as f64;
        let local_tokens = c.tokens / c.split as f64;
        let imbalance = self.imbalance(e);
        let copies = imbalance * e.top_k as f64 * local_tokens * etp;
        let fm = e.width as f64 / etp;
        let graphed = c.key.cuda_graphs == CudaGraphs::FullIteration;
        let key = RoutedKey {
            kind,
            tokens: local_tokens.to_bits(),
            expert_parallel: c.key.expert_parallel,
            expert_tensor_parallel: c.key.expert_tensor_parallel,
            graphed,
        };
        let Routed { passes: mut body, activation } =
            *routed.entry(key).or_insert_with(|| self.routed(c, e, copies));

        // Permutation and exchange.
        let permuted = |dispatcher: &Option<Dispatcher>| {
            let library = matches!(dispatcher, Some(Dispatcher::DeepEp | Dispatcher::HybridEp));
            if graphed {
                x.permute_bytes.2
            } else if library || c.key.expert_parallel == 1 {
                x.permute_bytes.1
            } else {
                x.permute_bytes.0
            }
        };
        let mut pi = c.dispatchers.iter().map(permuted).fold(f64::INFINITY, f64::min);
        if graphed && c.floor {
            pi = pi.min(x.permute_bytes.0).min(x.permute_bytes.1);
        }
        let permute =
            (pi * copies * width + 4.0 * local_tokens * h) / (d.bandwidth_peak * x.permute_efficiency);
        body.forward.add(Item::Routing, permute);
        body.backward.add(Item::Routing, permute);
        let router_kernels = if graphed { 4.0 } else { x.launches.1 };
        let router = (6.0 * h + 40.0 * e.experts as f64) * local_tokens / d.bandwidth + router_kernels * 2e-6;
        body.forward.add(Item::Routing, router);
        body.backward.add(Item::Routing, router);
        let exchange =
            |&dispatcher: &Option<Dispatcher>| self.exchange(c, dispatcher, e, width, local_tokens);
        body.exchange = imbalance * c.dispatchers.iter().map(exchange).fold(f64::INFINITY, f64::min);

        // Kept: permuted input, what the activation reads, and its output.
        let in_bytes = self.input_bytes();
        let activation_out = in_bytes * fm * copies;
        let moved = in_bytes * width * copies + 2.0 * (matrices - 1.0) * fm * copies;
        let mut stored = moved + activation_out;
        if c.dispatchers.iter().all(|&dispatcher| dispatcher == Some(Dispatcher::AllGather)) {
            stored += 2.0 * width * local_tokens * ep * etp;
        }
        if e.latent_width.is_some() {
            // The tokens before and after the experts, at the experts' width.
            stored += 4.0 * width * local_tokens;
        }
        let small = (4.0 * e.experts as f64 + 8.0 * e.top_k as f64) * local_tokens;
        moves.local += moved;
        stays.local += stored - moved + small;
        let hidden = if c.key.shared_overlap { part.hidden(body.exchange).0 } else { 0.0 };
        let whole = body.forward.total() + part.beside.forward.total() + 2.0 * body.exchange - hidden;
        Experts {
            passes: body,
            modules: [
                (Module::MoeActivation, activation, activation_out),
                (Module::Moe, whole, stored + small + part.shared),
            ]
            .into_iter(),
            moved,
            shapes: [(((matrices - 1.0) * fm) as u64, width as u64), (width as u64, fm as u64)],
        }
    }

    /// Seconds of one dispatch or combine.
    pub(super) fn exchange(
        &self,
        c: &Cell,
        dispatcher: Option<Dispatcher>,
        e: &Moe,
        width: f64,
        tokens: f64,
    ) -> f64 {
        let (ep, etp) = (f64::from(c.key.expert_parallel), f64::from(c.key.expert_tensor_parallel));
        let ranks = ep * etp;
        if ranks < 2.0 {
            return 0.0;
        }
        let k = e.top_k as f64;
        let group = &c.expert_group;
        let domains = f64::from(group.domains);
        let inside = f64::from(group.inside) * etp;
        let latency = self.profile.experts.dispatch_latency.0;
        let element = 2.0 * width * tokens;
        let (near, far, library) = match dispatcher {
            Some(Dispatcher::AllGather) => {
                let bytes = 2.0 * width * tokens * ranks;
                return self.fabric.all_gather(&self.fabric.group(ranks as u32, 1), bytes);
            }
            Some(Dispatcher::DeepEp | Dispatcher::HybridEp) => {
                let ranks_hit = (ep - 1.0) * (1.0 - (1.0 - 1.0 / ep).powf(k));
                let free = (domains - 1.0) * (1.0 - (1.0 - 1.0 / domains).powf(k));
                // Groups of experts that lie in several domains are not all in one.
                let limit = e.router.groups.map_or(f64::INFINITY, |g| {
                    g.top_k as f64 * (domains / g.count as f64).max(1.0) * (domains - 1.0) / domains
                });
                (element * ranks_hit * etp, element * free.min(limit), true)
            }
            _ => {
                let mut near = element * k * (inside - 1.0).max(0.0) / ranks;
                if etp > 1.0 {
                    near += 2.0 * width * tokens * k * (etp - 1.0);
                }
                (near, element * k * (domains - 1.0) / domains, false)
            }
        };
        let near = near / self.fabric.reach(inside as u32);
        let far = far * group.exchange_taper;
        self.fabric.dispatch(near, far, library) + latency
    }
}
