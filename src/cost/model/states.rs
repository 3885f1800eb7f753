//! States of a data-parallel arrangement: where they are, and their traffic.

use super::CostModel;
use crate::cost::{MicroOverlap, PerParameter, Sharding, StateClass};
use crate::frameworks::profile::{DataMode, OffloadedGradients};
use crate::memory;
use crate::plan::{Layout, Place, Schedule};
use crate::units::{Picos, Seconds};

/// Share of the last backward (first forward) pass under which data-parallel traffic hides.
/// Estimate: the first layers' gradients come last, and buckets close late.
const DATA_HIDDEN_SHARE: f64 = 0.8;

/// Slow-down of computation by overlapped data-parallel traffic, as a share of that traffic.
const DATA_INTERFERENCE: f64 = 0.05;

/// A data-parallel arrangement.
struct Arrangement {
    /// Ranks with the same dense parameters, and of these those that share their states.
    replicas: u32,
    shard: u32,
    /// The same of experts.
    expert_replicas: u32,
    expert_shard: u32,
    /// Whether gradients are reduced to shares.
    sharded: bool,
}

impl CostModel<'_> {
    /// Prices the states of one data-parallel arrangement.
    #[must_use]
    pub fn sharding(&self, layout: &Layout) -> Sharding {
        self.sharding_of(layout, self.state_classes(layout))
    }

    /// The states of one data-parallel arrangement, by [`StateClass`]: for a schedule however many chunks ranks have.
    #[must_use]
    pub fn state_classes(&self, layout: &Layout) -> [PerParameter; 4] {
        let Arrangement { replicas, shard, expert_replicas, expert_shard, sharded } =
            self.arrangement(layout);
        let mut classes = [PerParameter::default(); 4];
        for class in [StateClass::Dense, StateClass::Expert, StateClass::Ends, StateClass::Frozen] {
            let (ranks, group, stride) = match class {
                StateClass::Expert => {
                    (expert_replicas, expert_shard, layout.expert_parallel * layout.expert_tensor_parallel)
                }
                _ => (replicas, shard, layout.tensor_parallel),
            };
            classes[class as usize] = self.states(layout, class, ranks, group, stride, sharded);
        }
        classes
    }

    /// [`CostModel::sharding`] with its [`CostModel::state_classes`].
    #[must_use]
    pub fn sharding_of(&self, layout: &Layout, classes: [PerParameter; 4]) -> Sharding {
        let Arrangement { replicas, shard, expert_replicas, expert_shard, sharded } =
            self.arrangement(layout);
        let (t, p) = (layout.tensor_parallel, layout.pipeline_parallel);
        let expert_stride = layout.expert_parallel * layout.expert_tensor_parallel;
        let mode = if !layout.data_overlap {
            DataMode::After
        } else if layout.zero_stage > 0 {
            self.profile.data.sharded
        } else {
            self.profile.data.replicated
        };

        // Buckets: Megatron sizes them max(40e6, 1e6 D) elements; what is left of the last one cannot hide. Dense and expert
        // gradients have buffers of their own. The average rank's parameters stand for all.
        let chunks = f64::from(p) * f64::from(layout.virtual_stages);
        let dense = (self.total_parameters - self.expert_parameters) as f64 / f64::from(t) / chunks;
        let expert = self.expert_parameters as f64 / f64::from(expert_stride) / chunks;
        let bucket = (1e6 * f64::from(layout.data_parallel)).max(40e6);
        let buckets_of = |parameters: f64| (parameters / bucket).ceil();
        let dense_group = self.data_fabric.group(shard.max(if sharded { 1 } else { replicas }), t);
        let expert_group = self
            .data_fabric
            .group(expert_shard.max(if sharded { 1 } else { expert_replicas }), expert_stride);
        let once = f64::from(layout.virtual_stages)
            * (buckets_of(dense) * self.data_fabric.collective_latency(&dense_group)
                + buckets_of(expert) * self.data_fabric.collective_latency(&expert_group));
        let tensors = 6.0 * f64::from(self.layers.count()) / f64::from(p);
        let per_tensor = if layout.zero_stage > 0 {
            self.profile.data.tensor_latency.0
        } else {
            self.profile.data.tensor_latency.1
        };
        let tensor_latency = per_tensor.0 * f64::from(replicas.saturating_sub(1)) * tensors;
        let latency = if replicas < 2 { 0.0 } else { once + tensor_latency };
        let (hidden_reduce, hidden_gather) = match mode {
            DataMode::Overlapped => (DATA_HIDDEN_SHARE, DATA_HIDDEN_SHARE),
            DataMode::GradientsOverlapped => (DATA_HIDDEN_SHARE, 0.0),
            DataMode::After => (0.0, 0.0),
        };
        // With virtual stages the chunks' gradients become final one chunk after the other.
        let window = f64::from(layout.virtual_stages);
        // The last bucket of each buffer, of the last chunk to be done; one per chunk where there are no buckets.
        let last = |parameters: f64| parameters / buckets_of(parameters).max(1.0);
        let of_chunk = 1.0 / window;
        let of_bucket = of_chunk * (last(dense) + last(expert)) / (dense + expert).max(1.0);
        let others = if self.profile.data.buckets_on_first_rank { of_chunk } else { of_bucket };
        let (step_overhead, jitter) = self.step_floor();
        Sharding {
            classes,
            step_overhead,
            latency: (Seconds(latency).picos(), Seconds(if sharded { latency } else { 0.0 }).picos()),
            exposed_floor: (of_bucket, others),
            hidden_share: (hidden_reduce * window, hidden_gather * window),
            interference: DATA_INTERFERENCE,
            micro_overlap: (layout.zero_stage >= 3)
                .then_some(MicroOverlap { slow: self.profile.sharded.slow, tail: self.profile.sharded.tail }),
            most_gathered: self.profile.sharded.most_gathered.unwrap_or(f64::INFINITY),
            jitter,
        }
    }

    /// Among how many ranks states are replicated and sharded.
    fn arrangement(&self, layout: &Layout) -> Arrangement {
        let replicas = layout.data_parallel * layout.context_parallel;
        let expert_replicas = layout.expert_data_parallel().max(1);
        let (shard, expert_shard) = if layout.zero_stage > 0 {
            let shard = layout.shard_group.clamp(1, replicas);
            // Hybrid sharding divides expert replicas in the same proportion.
            (shard, (expert_replicas / (replicas / shard).max(1)).max(1))
        } else {
            (1, 1)
        };
        let sharded = layout.zero_stage > 0 && !self.profile.data.always_all_reduce;
        Arrangement { replicas, shard, expert_replicas, expert_shard, sharded }
    }

    /// What every step of the job takes beside its passes whatever the plan, and the factor on all of it.
    #[must_use]
    pub fn step_floor(&self) -> (Picos, f64) {
        let gpus = f64::from(self.job.gpus);
        let jitter =
            self.profile.jitter.base + self.profile.jitter.per_doubling * (gpus / 64.0).log2().max(0.0);
        (self.profile.host.step.picos(), jitter)
    }

    /// Seconds a parameter of a rank that Muon takes to make matrices orthogonal. The ranks of a tensor-parallel group
    /// gather the momentum, and each works on the whole matrix (`--muon-tp-mode duplicated`,
    /// Megatron-LM:megatron/core/optimizer/emerging_optimizers.py); sharding gives ranks whole matrices. DeepSpeed takes less:
    /// ranks work on what they have, and by default on Gram matrices where sides differ
    /// (DeepSpeed:deepspeed/runtime/zero/muon/original_muon.py).
    fn orthogonalised(&self, layout: &Layout, class: StateClass, group: u32) -> f64 {
        let Some([dense, expert]) = self.orthogonal else { return 0.0 };
        let (matrices, split, parts) = match class {
            StateClass::Dense => (dense, layout.tensor_parallel, 1),
            StateClass::Expert => (expert, layout.expert_tensor_parallel, layout.expert_parallel),
            StateClass::Ends | StateClass::Frozen => return 0.0,
        };
        // In FP32.
        let momentum = 4.0 / f64::from(group) * self.fabric.gather_slope(&self.fabric.group(split, 1));
        let (work, gathered) = matrices.per_parameter(layout.pipeline_parallel * parts, split, group);
        work + gathered * f64::from(split) * momentum
    }

    /// States of one class, sharded over `group` of `ranks` replicas that lie `stride` apart.
    pub(super) fn states(
        &self,
        layout: &Layout,
        class: StateClass,
        ranks: u32,
        group: u32,
        stride: u32,
        sharded: bool,
    ) -> PerParameter {
        let low = self.low.filter(|_| matches!(class, StateClass::Dense | StateClass::Expert));
        let recipe = memory::states(self.profile, self.job.precision);
        let primary = self.profile.memory.primary_low_precision;
        let d = f64::from(group);
        let frozen = class == StateClass::Frozen;
        let weights = match low {
            Some(l) if primary => l.weight_bytes,
            Some(l) => recipe.weights + l.weight_bytes,
            None => recipe.weights,
        };
        let cached = if frozen { 0.0 } else { self.profile.memory.cached_weights };
        let moments = memory::moment_bytes(self.job.optimizer, class);
        let (mut q, mut o) = (recipe.gradients, recipe.owned + moments);
        if frozen {
            (q, o) = (0.0, 0.0);
        }
        // A rank holds the layers of both directions, and of the ends one: those of the other are on its mirror. Norms and
        // routers, a thousandth of the layers, are counted with the ends.
        let twice = layout.schedule == Schedule::DualPipe && class != StateClass::Ends;
        let copies = if twice { 2.0 } else { 1.0 };
        let offload = layout.offload;
        let stage = layout.zero_stage;
        let mut s = PerParameter {
            weights: copies * if stage >= 3 { weights / d } else { weights + cached },
            gradients: copies * if stage >= 2 { q / d } else { q },
            optimizer: if offload.optimizer == Place::Gpu { o / d } else { 0.0 },
            staging: self.profile.memory.staging,
            ..PerParameter::default()
        };
        let kept = self.profile.memory.gradients_of(layout);
        let gradients_off = kept != OffloadedGradients::OnGpu;
        let micro_batches = f64::from(layout.gradient_accumulation_steps);
        // DeepSpeed's ZeRO-2 keeps no sum of one micro-batch beside what the update reads.
        let lone = kept == OffloadedGradients::SummedOnGpu && stage == 2 && micro_batches == 1.0;
        if gradients_off {
            s.gradients = 0.0;
        }
        if stage == 0 && !frozen && offload.optimizer == Place::Gpu {
            s.staging += self.profile.memory.replicated_staging;
        }
        if offload.parameters != Place::Gpu && stage >= 3 {
            s.weights = 0.0;
        }
        // Pinned copies of what lives off the GPU; of gradients on the GPU one copy passes through host memory, in FP32 where
        // there is one in FP32. Where they lie in host memory themselves, the copy that the update reads is beside them.
        let in_host = if frozen { 0.0 } else { self.profile.memory.host_gradients };
        let passing = if gradients_off { in_host } else { q.min(4.0).max(in_host) };
        let mut off = |place: Place, bytes: f64| match place {
            Place::Gpu => {}
            Place::Cpu => s.host += bytes,
            Place::Nvme => s.nvme += bytes,
        };
        off(offload.optimizer, (o + passing) / d);
        if gradients_off && !lone {
            off(Place::Cpu, q / d);
        }
        if stage >= 3 {
            off(offload.parameters, weights / d);
        }
        let f = &self.data_fabric;
        let inner = f.group(group, stride);
        let outer = f.group(ranks / group.max(1), stride * group);
        let all = f.group(ranks, stride);
        let picos = 1e12;
        let wire = self.profile.data.gradient_bytes;
        let gather_bytes = low.map_or(2.0, |l| if primary { l.gather_bytes } else { 2.0 });
        if stage >= 3 {
            let w = &self.profile.sharded;
            let gather = f.gather_slope(&inner)
                * low.map_or(w.gather_bytes, |l| if primary { l.gather_bytes } else { w.gather_bytes });
            let reduce = if frozen {
                0.0
            } else {
                f.gather_slope(&inner) * w.reduce_bytes + f.reduce_slope(&outer) * w.reduce_bytes / d
            };
            let link = self.host_share(offload.parameters);
            let fetch = if offload.parameters == Place::Gpu { 0.0 } else { 2.0 / d / link };
            if w.kept_in_pipeline && layout.pipeline_parallel > 1 {
                s.gather = picos * (gather + fetch);
                s.reduce = picos * reduce;
                s.weights += copies * 2.0;
                s.gradients += if frozen { 0.0 } else { copies * w.reduce_bytes };
            } else {
                s.micro_gather = picos * (gather + fetch);
                s.micro_reduce = picos * (gather + fetch + reduce);
            }
            s.gathered = if w.kept_in_pipeline && layout.pipeline_parallel > 1 {
                0.0
            } else {
                (1.0 + w.prefetch) * 2.0 + if frozen { 0.0 } else { w.reduce_bytes }
            };
        } else if !frozen {
            if sharded {
                let reduce = f.gather_slope(&inner) * wire + f.reduce_slope(&outer) * wire / d;
                if stage == 2 {
                    s.micro_reduce = picos * reduce;
                } else {
                    s.reduce = picos * reduce;
                }
                s.gather = picos * f.gather_slope(&inner) * gather_bytes;
            } else {
                s.reduce = picos * f.reduce_slope(&all) * wire;
                if group > 1 {
                    s.gather = picos * f.gather_slope(&inner) * gather_bytes;
                }
            }
        }
        if gradients_off {
            // Down with every micro-batch. Where the sum is made on the GPU, those before come up, at ZeRO-3 even the first one's
            // own; the host's own sum walks three copies.
            let (one, before) = (q / d / self.host_share(Place::Cpu), micro_batches - 1.0);
            let per_gpu = self.cluster.host.memory_bandwidth.0 / f64::from(self.cluster.gpus_per_node);
            let once_a_step = self.profile.sharded.kept_in_pipeline && layout.pipeline_parallel > 1;
            if kept == OffloadedGradients::SummedOnGpu {
                let up = if stage >= 3 { micro_batches } else { before };
                let down = if lone { 0.0 } else { micro_batches };
                s.micro_reduce += picos * (down + up) * one / micro_batches;
            } else if stage >= 3 && once_a_step {
                s.reduce += picos * one;
            } else {
                s.micro_reduce += picos * (one + before / micro_batches * 3.0 * q / d / per_gpu);
            }
        }
        if !frozen {
            let traffic = memory::update_bytes(self.job.optimizer, class);
            s.update = if offload.optimizer == Place::Gpu {
                picos * (traffic / d + 6.0) / self.device.bandwidth
            } else {
                // Gradients go down, weights come up, and the host walks the states in between, where they lie.
                let link = self.accelerator.host_link.0;
                let per_gpu = f64::from(self.cluster.gpus_per_node);
                let states = match offload.optimizer {
                    Place::Nvme => self.host_share(Place::Nvme),
                    Place::Gpu | Place::Cpu => self.cluster.host.memory_bandwidth.0 / per_gpu,
                };
                picos * ((passing + 2.0) / d / link + traffic / d / states + 6.0 / self.device.bandwidth)
            };
            s.update += picos * self.orthogonalised(layout, class, group);
        }
        s
    }
}
