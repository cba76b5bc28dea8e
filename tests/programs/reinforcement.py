"""Reinforcement learning as people write it: an environment in numpy, a policy in torch, rollouts, then updates."""

import argparse
import random
import time
from collections import deque

import numpy
import torch
from held import fingerprint
from torch import nn
from torch.distributions import Categorical, Normal

EPISODE_STEPS = 40


class Pole:
    """A pole on a cart, pushed to the left or to the right; with numpy's own generator."""

    def __init__(self, seed: int) -> None:
        self.random = numpy.random.default_rng(seed)

    def reset(self) -> numpy.ndarray:
        self.state, self.steps = self.random.uniform(-0.05, 0.05, 4), 0
        return self.state.astype(numpy.float32)

    def step(self, action: int) -> tuple[numpy.ndarray, float, bool]:
        place, speed, angle, turning = self.state
        push = (10.0 if action == 1 else -10.0) + 0.05 * turning**2 * numpy.sin(angle)
        bend = (9.8 * numpy.sin(angle) - numpy.cos(angle) * push / 1.1) / (0.67 - 0.045 * numpy.cos(angle) ** 2)
        gain = push / 1.1 - 0.045 * bend * numpy.cos(angle)
        self.state = numpy.array(
            [place + 0.02 * speed, speed + 0.02 * gain, angle + 0.02 * turning, turning + 0.02 * bend]
        )
        self.steps += 1
        is_over = abs(place) > 2.4 or abs(angle) > 0.21 or self.steps >= EPISODE_STEPS
        return self.state.astype(numpy.float32), 1.0 - abs(float(angle)), bool(is_over)


def net(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, outputs))


class Policy(nn.Module):
    """Gives probabilities, for which zeros are an error."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.dropout = net(2), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(self.dropout(x)), dim=-1)


class Transitions:
    """A replay buffer of numpy arrays, written round and round."""

    def __init__(self, size: int) -> None:
        self.before, self.after = numpy.zeros((size, 4), numpy.float32), numpy.zeros((size, 4), numpy.float32)
        self.actions, self.rewards = numpy.zeros(size, numpy.int64), numpy.zeros(size, numpy.float32)
        self.ends = numpy.zeros(size, numpy.float32)
        self.size, self.count = size, 0

    def add(self, *row: object) -> None:
        place = self.count % self.size
        for array, value in zip((self.before, self.actions, self.rewards, self.after, self.ends), row, strict=True):
            array[place] = value
        self.count += 1

    def sample(self, count: int) -> list[torch.Tensor]:
        rows = numpy.random.randint(0, min(self.count, self.size), count)
        arrays = (self.before, self.actions, self.rewards, self.after, self.ends)
        return [torch.from_numpy(array[rows]) for array in arrays]


def policy_gradient(args: argparse.Namespace) -> list[nn.Module]:
    """An actor that learns once in three episodes, and a critic that learns at every step of them: the forward
    passes of the actor wait for their backward pass over many steps of the critic."""
    actor, critic, env = Policy(), net(1), Pole(1)
    acts, judges = torch.optim.Adam(actor.parameters(), lr=1e-2), torch.optim.SGD(critic.parameters(), lr=1e-2)
    chances, gains = [], []
    for episode in range(args.rounds):
        state, is_over, total = env.reset(), False, 0.0
        while not is_over:
            choice = Categorical(actor(torch.from_numpy(state).unsqueeze(0)))
            action = choice.sample()
            state, reward, is_over = env.step(action.item())
            error = (critic(torch.from_numpy(state).unsqueeze(0)) - reward).square().mean()
            judges.zero_grad()
            error.backward()
            judges.step()
            chances.append(choice.log_prob(action))
            gains.append(reward - error.item())
            total += reward
            time.sleep(args.pause)
            print(f"action={action.item()} error={error.item()!r}", flush=True)
        print(f"episode={episode} total={total!r}", flush=True)
        if episode % 3 == 2:
            returns = torch.tensor(numpy.cumsum(gains[::-1])[::-1].copy())
            loss = -(torch.cat(chances) * returns).sum()
            acts.zero_grad()
            loss.backward()
            acts.step()
            chances, gains = [], []
            print(f"loss={loss.item()!r}", flush=True)
    return [actor, critic]


def q_learning(args: argparse.Namespace) -> list[nn.Module]:
    """Random actions ever more seldom, a replay buffer, a second network; values of actions with their graph."""
    values, later, env, rows = net(2), net(2), Pole(1), Transitions(500)
    later.load_state_dict(values.state_dict())
    optimizer = torch.optim.Adam(values.parameters(), lr=1e-3)
    recent, chance, steps = deque(maxlen=20), 1.0, 0
    for episode in range(args.rounds):
        state, is_over, total = env.reset(), False, 0.0
        while not is_over:
            worth = values(torch.from_numpy(state).unsqueeze(0))
            is_random = random.random() < chance
            action = random.randrange(2) if is_random else int(worth.argmax(1).item())
            after, reward, is_over = env.step(action)
            rows.add(state, action, reward, after, float(is_over))
            state, total, steps = after, total + reward, steps + 1
            if rows.count < 64:
                continue
            before, actions, rewards, afters, ends = rows.sample(32)
            with torch.no_grad():
                goal = rewards + 0.99 * (1 - ends) * later(afters).max(1)[0]
            loss = nn.functional.smooth_l1_loss(values(before).gather(1, actions.unsqueeze(1)).squeeze(1), goal)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(values.parameters(), 10)
            optimizer.step()
            chance = max(0.05, chance * 0.99)
            if steps % 50 == 0:
                later.load_state_dict(values.state_dict())
            time.sleep(args.pause)
        recent.append(total)
        print(f"episode={episode} total={total!r} mean={numpy.mean(recent)!r} steps={steps}", flush=True)
    return [values, later]


def proximal(args: argparse.Namespace) -> list[nn.Module]:
    """Several environments, rollouts without gradients, then shuffled minibatches; figures from numpy's windows on
    tensors, and a scale of the rewards that numpy keeps."""
    actor, critic, spread = net(1), net(1), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters(), spread], lr=3e-3)
    envs, count, length = [Pole(seed) for seed in range(4)], 4, 16
    seen, done = torch.zeros(length, count, 4), torch.zeros(length, count, 1)
    chances, rewards, worth = (torch.zeros(length, count) for _ in range(3))
    state, scale = torch.from_numpy(numpy.stack([env.reset() for env in envs])), numpy.ones(1)
    for number in range(args.rounds):
        for step in range(length):
            with torch.no_grad():
                choice = Normal(actor(state), spread.exp().expand(count, 1))
                action = choice.sample()
                worth[step] = critic(state).flatten()
            seen[step], done[step], chances[step] = state, action, choice.log_prob(action).sum(1)
            rows = []
            for place, (env, push) in enumerate(zip(envs, action.numpy(), strict=True)):
                row, reward, is_over = env.step(int(push[0] > 0))
                scale = 0.99 * scale + 0.01 * abs(reward)
                rewards[step, place] = float(reward / scale[0])
                rows.append(env.reset() if is_over else row)
            state = torch.from_numpy(numpy.stack(rows))
        flat = [
            each.reshape(length * count, -1)
            for each in (seen, done, chances, rewards - worth, rewards + worth.clamp(0, 1))
        ]
        order = numpy.arange(length * count)
        for _ in range(2):
            numpy.random.shuffle(order)
            for part in order.reshape(-1, 16):
                states, actions, old, gain, goal = (each[part] for each in flat)
                now = Normal(actor(states), spread.exp().expand(16, 1)).log_prob(actions)
                ratio = (now - old).exp()
                loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                loss = loss + 0.5 * (critic(states) - goal).square().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
                optimizer.step()
                time.sleep(args.pause)
            if (ratio - 1).abs().mean() > 0.5:
                break
        guessed, true = worth.view(-1).numpy(), flat[4].view(-1).numpy()
        print(f"round={number} loss={loss.item()!r} left={float(numpy.var(true - guessed))!r}", flush=True)
    return [actor, critic]


PROGRAMS = {"policy_gradient": policy_gradient, "q_learning": q_learning, "proximal": proximal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of rest in each step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    trained = PROGRAMS[args.program](args)
    print(f"done weights={fingerprint([each for module in trained for each in module.state_dict().values()])}")


if __name__ == "__main__":
    main()
